//! Moving single interrupts into and out of list registers.

use crate::block::Block;
use crate::interface::ListRegisters;
use crate::kick::Bits;
use crate::lr::{ListRegister, MAX_LIST_REGISTERS};
use crate::shortcuts::PendingRequests;
use crate::{BLOCK, FIRST_LPI, SGIS};

/// Software's view of a vCPU's list registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    /// List registers available for use, bit `n` being list register `n`.
    pub all: u16,
    /// Those with a resident interrupt, which may have become invalid since.
    pub used: u16,
    /// Those of `used` that request EOI maintenance.
    pub eoi: u16,
    /// PPIs backed by a physical interrupt, bit `n` being INTID `n`.
    pub hw_ppis: u32,
    /// Their physical INTIDs, by virtual INTID from 16 on.
    behind: [u8; 16],
    /// Of these, those whose physical interrupt is active on behalf of this vCPU: it fired, and the virtual
    /// one is not deactivated yet. Stays set while resident.
    pub held: u32,
    /// Resident SGIs, and PPIs of `hw_ppis`, eligible for the fast path: to deliver one, its list register
    /// only has to become pending. Nothing has changed that would need reevaluation.
    pub quick: u32,
}

/// Constraints on a list register's contents.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// The interrupt is routed to this vCPU (it may be active here but routed elsewhere).
    pub routed: bool,
    /// List registers have overflowed: none may be both pending and active. The architecture does not define
    /// whether such a register counts as pending for ICH_MISR_EL2.NP; this way NP is asserted when needed.
    pub overflows: bool,
}

impl Slots {
    pub fn new(list_registers: u8, hw_ppis: u32, behind: [u8; 16]) -> Self {
        let count = u32::from(list_registers.clamp(1, MAX_LIST_REGISTERS as u8));
        let all = (u32::from(u16::MAX) >> (MAX_LIST_REGISTERS as u32 - count)) as u16;
        Self { all, used: 0, eoi: 0, hw_ppis, behind, held: 0, quick: 0 }
    }

    /// Links PPI `i`'s list register to its physical interrupt.
    #[inline]
    pub fn linked(&self, lr: ListRegister, i: usize) -> ListRegister {
        lr.with_hw(self.behind[i % 16].into())
    }

    /// An unused list register, according to software's view.
    #[inline]
    pub fn free(&self) -> Option<usize> {
        let free = self.all & !self.used;
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    /// Folds list register `n`, which reads as `lr` and belongs to `block`, back into software state. The
    /// register itself is unchanged.
    pub fn fold<L: ListRegisters>(&mut self, block: &mut Block, n: usize, lr: ListRegister, lrs: &L) {
        let i = lr.intid() as usize % BLOCK;
        let bit = 1 << i;
        let private = lr.intid() < BLOCK as u32;
        // An LPI has no active state; that of its list register is of no use. Its end needs no list register, and is not
        // counted by EOIcount.
        let is_active = lr.active() && lr.intid() < FIRST_LPI;

        // A shortcut that raises an interrupt leaves no record here; one made active by a write has no shortcut.
        let by_shortcut = if private { i < SGIS && block.written & bit == 0 } else { block.by_shortcut & bit != 0 };
        if block.latched & bit != 0 || by_shortcut {
            if !lr.pending() {
                // Acknowledged.
                block.written &= !bit;
            } else if block.drop_pending & bit == 0 {
                block.pending |= bit;
            }
        }
        if block.drop_active & bit == 0 {
            block.active &= !bit;
            if is_active {
                block.active |= bit;
            } else {
                block.written &= !bit;
            }
        } else if block.active & bit != 0 && !is_active {
            block.written |= bit;
        }
        block.acknowledged[i] = if is_active { lr.entry() } else { block.entry[i] };
        if lr.hw() {
            // A physical line that is still high fires again at the physical deactivation. So the virtual
            // interrupt is not pending once acknowledged.
            block.line &= !bit;
            if lr.pending() {
                block.line |= bit;
            }
            if lr.invalid() {
                // The guest's deactivation reached the physical interrupt.
                self.held &= !bit;
            }
        }
        block.latched &= !bit;
        block.shown_active &= !bit;
        block.resident &= !bit;
        block.recall &= !bit;
        block.drop_pending &= !bit;
        block.drop_active &= !bit;
        self.used &= !(1 << n);
        self.eoi &= !(1 << n);
        if private {
            self.quick &= !bit;
            if let Some(shortcuts) = lrs.shortcuts() {
                shortcuts.forget(i);
            }
        } else if block.by_shortcut & bit != 0 {
            block.by_shortcut &= !bit;
            if let Some(shortcuts) = lrs.shortcuts() {
                shortcuts.forget_spi(lr.intid());
            }
        }
    }

    /// Withdraws PPI `i` of `block`, whose physical interrupt has fired, if the condition went away before the guest
    /// acknowledged it.
    #[inline(always)]
    pub fn sample<L: ListRegisters>(&self, block: &mut Block, i: usize, lrs: &L) {
        if lrs.physical_line(i as u32) == Some(false) {
            block.line &= !(1 << i);
        }
    }

    /// Puts interrupt `i` of `block` into list register `n`. Returns false if it has no state to put there.
    pub fn place<L: ListRegisters>(&mut self, block: &mut Block, i: usize, n: usize, terms: Terms, lrs: &mut L) -> bool {
        let bit = 1 << i;
        let private = block.entry[i].intid() < BLOCK as u32;
        let held = if private { self.held & bit } else { 0 };
        if held & block.line != 0 {
            self.sample(block, i, lrs);
        }

        let active = block.active & bit != 0;
        let asserted = block.asserted() & bit != 0;
        let forward = block.forward & bit != 0;
        let mut lr = if active { block.acknowledged[i] } else { block.entry[i] };
        let alone = !active || !terms.overflows && lr.same_rank(block.entry[i]);
        let pending = asserted && forward && terms.routed && alone;
        if !pending && !active {
            return false;
        }

        // Pending, but the list register can't represent it: reevaluate at the deactivation.
        let left = asserted && !pending;
        let mut quick = private && forward && !terms.overflows && lr.same_rank(block.entry[i]);
        if held != 0 && pending != active && !left {
            lr = self.linked(lr, i);
            quick &= block.pending & bit == 0;
        } else {
            let line = block.line & !block.edge & bit != 0;
            if held != 0 || forward && (left || line) {
                lr = lr.with(ListRegister::EOI);
                self.eoi |= 1 << n;
            }
            quick &= i < SGIS && block.written & bit == 0;
        }
        if pending {
            lr = lr.with(ListRegister::PENDING);
            block.latched |= block.pending & bit;
            block.pending &= !bit;
        }
        if active {
            lr = lr.with(ListRegister::ACTIVE);
            block.shown_active |= bit;
            block.active &= !bit;
        }
        self.used |= 1 << n;
        if quick {
            self.quick |= bit;
        }
        block.resident |= bit;
        block.slot[i] = n as u8;
        lrs.write(n, lr);
        if quick && let Some(shortcuts) = lrs.shortcuts() {
            shortcuts.set(i, n, lr);
        }
        if !private && block.edge & bit != 0 {
            let settled = forward && terms.routed && !terms.overflows && block.written & bit == 0;
            if settled && !lr.eoi() && lr.same_rank(block.entry[i]) {
                shorten(block, i, n, lrs);
            }
        }
        true
    }

    /// Reevaluates list register `n`, whose interrupt belongs to `block`, and rewrites it.
    pub fn refresh<L: ListRegisters>(&mut self, block: &mut Block, n: usize, terms: Terms, lrs: &mut L) {
        let lr = lrs.read(n);
        self.fold(block, n, lr, lrs);
        if !self.place(block, lr.intid() as usize % BLOCK, n, terms, lrs) {
            clear(n, lr, lrs);
        }
    }

    /// Deactivates physical interrupts whose virtual ones are neither pending nor active.
    #[inline]
    pub fn settle<L: ListRegisters>(&mut self, block: &Block, lrs: &mut L) {
        let over = self.held & !(block.resident | block.active | block.asserted());
        if over != 0 {
            self.held &= !over;
            for i in Bits(over) {
                lrs.deactivate_physical(i as u32);
            }
        }
    }
}

/// Adds a shortcut for SPI `i` of `block`, which only has to become pending in list register `n`.
pub(super) fn shorten<L: ListRegisters>(block: &mut Block, i: usize, n: usize, lrs: &L) {
    let intid = block.entry[i].intid();
    if PendingRequests::POSTED.contains(&intid)
        && let Some(shortcuts) = lrs.shortcuts()
    {
        block.by_shortcut |= 1 << i;
        shortcuts.set_spi(intid, n);
    }
}

/// Invalidates list register `n`, which holds `lr`.
pub(super) fn clear<L: ListRegisters>(n: usize, lr: ListRegister, lrs: &mut L) {
    if !lr.invalid() || lr.eoi_asserted() {
        lrs.write(n, ListRegister::INVALID);
    }
}
