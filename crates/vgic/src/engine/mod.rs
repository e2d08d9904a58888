//! The list-register engine: synchronizes a vCPU's list registers with its pending interrupts.
//!
//! The fast path reads no list register: a deliverable interrupt goes into a free one, or into the one it is
//! resident in. Only on overflow does [`overflow`] take all out and reselect.

mod inject;
mod overflow;
mod slots;
mod wfi;

use crate::block::Block;
use crate::distributor::Distributor;
use crate::interface::{ListRegisters, Maintenance};
use crate::kick::{Bits, Delivery, Kick};
use crate::lr::ListRegister;
use crate::redistributor::Redistributor;
use crate::{BLOCK, BLOCKS};
pub(crate) use slots::Slots;
use slots::{Terms, clear};

/// The common case: sufficient list registers, and the interrupt is routed here.
const PLAIN: Terms = Terms { routed: true, overflows: false };

impl Redistributor {
    /// Synchronizes this vCPU's list registers: reevaluates recalled interrupts, delivers those that became
    /// deliverable (SPIs routed here and its own SGIs and PPIs), publishes state if requested. Returns other
    /// vCPUs to kick.
    pub fn sync<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L) -> Kick {
        let vcpu = self.config.vcpu.into();
        if distributor.unsynced.contains(vcpu) {
            distributor.unsynced = distributor.unsynced.without(vcpu);
            self.block.set_enables(distributor.enables);
        }
        let mut kick = Kick::NONE;
        if self.overflows() {
            kick |= self.account_deactivations(distributor, lrs);
            kick |= self.choose_anew(distributor, lrs);
        } else {
            kick |= self.pull_spis(distributor, lrs);
            if self.pull_private(lrs) == Delivery::NeedsSync || self.waiting_spis(distributor) {
                kick |= self.choose_anew(distributor, lrs);
            }
        }
        if self.unpublished {
            self.publish_private(lrs);
        }
        if distributor.unpublished.contains(vcpu) {
            distributor.unpublished = distributor.unpublished.without(vcpu);
            kick |= self.publish_spis(distributor, lrs);
        }
        self.slots.settle(&self.block, lrs);
        kick.without(vcpu)
    }

    /// [`sync`](Self::sync) for a vCPU that is not loaded, on its saved list registers, including the work of
    /// [`maintenance`](Self::maintenance).
    pub fn sync_saved(&mut self, distributor: &mut Distributor) -> Kick {
        self.on_saved(|this, saved| this.maintenance(distributor, saved))
    }

    /// The part of [`sync`](Self::sync) for SGIs and PPIs, without the distributor.
    #[inline]
    pub fn sync_private<L: ListRegisters>(&mut self, lrs: &mut L) -> Delivery {
        self.merge_quick(lrs);
        self.sync_private_merged(lrs)
    }

    /// [`sync_private`](Self::sync_private) with no posted SGI that is eligible for the fast path.
    #[inline]
    pub(crate) fn sync_private_merged<L: ListRegisters>(&mut self, lrs: &mut L) -> Delivery {
        let block = &self.block;
        let rest = block.recall | block.wanted() | self.slots.held & !block.resident;
        if rest == 0 && !self.unpublished { Delivery::Done } else { self.sync_private_rest(lrs) }
    }

    #[inline(never)]
    fn sync_private_rest<L: ListRegisters>(&mut self, lrs: &mut L) -> Delivery {
        if self.overflows() || self.pull_private(lrs) == Delivery::NeedsSync {
            return Delivery::NeedsSync;
        }
        if self.unpublished {
            self.publish_private(lrs);
        }
        self.slots.settle(&self.block, lrs);
        Delivery::Done
    }

    /// [`sync_private`](Self::sync_private) for a vCPU that is not loaded.
    pub fn sync_private_saved(&mut self) -> Delivery {
        self.on_saved(|this, saved| this.sync_private(saved))
    }

    /// Handles a maintenance interrupt: samples level-sensitive lines again at their EOI, refills free list
    /// registers, accounts for deactivations without a list register.
    pub fn maintenance<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L) -> Kick {
        let kick = self.reclaim(distributor, lrs);
        (kick | self.sync(distributor, lrs)).without(self.config.vcpu.into())
    }

    /// Emulates a write of `intid` to ICC_DIR_EL1, trapped by [`Maintenance::TDIR`].
    pub fn deactivate<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L, intid: u32) -> Kick {
        if !lrs.vmcr().eoi_split() {
            // Without EOImode the write is UNPREDICTABLE; it is ignored.
            return Kick::NONE;
        }
        let mut kick = Kick::NONE;
        if intid < BLOCK as u32 {
            let bit = self.block.clear_active(1 << intid);
            self.note_changed(bit);
        } else {
            kick = distributor.clear_active(intid);
        }
        (kick | self.sync(distributor, lrs)).without(self.config.vcpu.into())
    }

    /// Whether list registers have overflowed, so that a delivery must consider all interrupts.
    #[inline]
    pub(crate) fn overflows(&self) -> bool {
        self.maintenance != Maintenance::default()
    }

    /// Runs `f` on the saved list registers instead of live ones.
    fn on_saved<T>(&mut self, f: impl FnOnce(&mut Self, &mut crate::CpuInterface) -> T) -> T {
        let fresh = crate::CpuInterface::new(&self.config);
        let mut saved = core::mem::replace(&mut self.interface, fresh);
        let result = f(self, &mut saved);
        self.interface = saved;
        result
    }

    /// Makes posted SGIs pending that are resident and eligible for the fast path.
    #[inline]
    fn merge_quick<L: ListRegisters>(&mut self, lrs: &mut L) {
        for i in Bits(self.take_quick()) {
            lrs.update(self.block.slot[i].into(), |lr| lr.with(ListRegister::PENDING));
        }
    }

    /// [`merge_quick`](Self::merge_quick) for a vCPU that is not loaded.
    #[inline(always)]
    pub(crate) fn merge_quick_saved(&mut self) {
        for i in Bits(self.take_quick()) {
            self.interface.update(self.block.slot[i].into(), |lr| lr.with(ListRegister::PENDING));
        }
    }

    /// Takes posted SGIs that are resident and eligible for the fast path: the caller makes them pending.
    #[inline(always)]
    fn take_quick(&mut self) -> u32 {
        let block = &mut self.block;
        let posted = block.pending & self.slots.quick;
        block.pending &= !posted;
        block.latched |= posted;
        posted
    }

    /// Reevaluates recalled SGIs and PPIs, and delivers waiting ones.
    fn pull_private<L: ListRegisters>(&mut self, lrs: &mut L) -> Delivery {
        self.merge_quick(lrs);
        let block = &mut self.block;
        for i in Bits(block.recall) {
            self.slots.refresh(block, block.slot[i].into(), PLAIN, lrs);
        }
        for i in Bits(block.wanted()) {
            let free = match self.slots.free() {
                None => {
                    self.slots.reclaim_private(block, lrs);
                    self.slots.free()
                }
                free => free,
            };
            let Some(n) = free else {
                return Delivery::NeedsSync;
            };
            self.slots.place(block, i, n, PLAIN, lrs);
        }
        Delivery::Done
    }

    /// Reevaluates recalled SPIs resident on this vCPU, and takes SPIs that wait for it, as list registers
    /// permit.
    fn pull_spis<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L) -> Kick {
        let mut kick = Kick::NONE;
        for b in 0..distributor.used_blocks {
            let block = &distributor.blocks[b];
            let mine = self.owned(distributor, b, block.recall);
            for i in Bits(mine) {
                kick |= self.refresh_spi(distributor, b, i, lrs);
            }
            let wanted = self.owned(distributor, b, distributor.blocks[b].wanted());
            for i in Bits(wanted) {
                if self.slots.free().is_none() {
                    kick |= self.reclaim(distributor, lrs);
                }
                let Some(n) = self.slots.free() else {
                    return kick;
                };
                self.place_spi(distributor, b, i, n, false, lrs);
            }
        }
        kick
    }

    /// Whether an SPI waits for this vCPU.
    pub(crate) fn waiting_spis(&self, distributor: &Distributor) -> bool {
        (0..distributor.used_blocks).any(|b| self.owned(distributor, b, distributor.blocks[b].wanted()) != 0)
    }

    /// Of `bits` of SPI block `b`, those that this vCPU must handle.
    #[inline]
    fn owned(&self, distributor: &Distributor, b: usize, bits: u32) -> u32 {
        let mine = |&i: &usize| distributor.owner(b, i) == u16::from(self.config.vcpu);
        Bits(bits).filter(mine).map(|i| 1 << i).sum()
    }

    fn terms(&self, distributor: &Distributor, b: usize, i: usize, overflows: bool) -> Terms {
        Terms { routed: distributor.target(b, i) == u16::from(self.config.vcpu), overflows }
    }

    /// Puts SPI `i` of block `b` into list register `n`. Returns false if it has no state to put there.
    fn place_spi<L: ListRegisters>(
        &mut self,
        distributor: &mut Distributor,
        b: usize,
        i: usize,
        n: usize,
        overflows: bool,
        lrs: &mut L,
    ) -> bool {
        let terms = self.terms(distributor, b, i, overflows);
        let placed = self.slots.place(&mut distributor.blocks[b], i, n, terms, lrs);
        if placed {
            distributor.set_home(b, i, self.config.vcpu.into());
        }
        placed
    }

    /// Reevaluates the resident SPI `i` of block `b`. Its target may have changed.
    fn refresh_spi<L: ListRegisters>(&mut self, distributor: &mut Distributor, b: usize, i: usize, lrs: &mut L) -> Kick {
        let terms = self.terms(distributor, b, i, self.overflows());
        let block = &mut distributor.blocks[b];
        self.slots.refresh(block, block.slot[i].into(), terms, lrs);
        distributor.notify_moved(b, 1 << i)
    }

    /// Resets the CPU interface of a vCPU that is powered on again. Interrupts in its list registers return
    /// to software; SGIs and PPIs keep their state, as in a redistributor. The vCPU must not be loaded.
    pub fn reset_interface(&mut self, distributor: &mut Distributor) -> Kick {
        let mut kick = Kick::NONE;
        let fresh = crate::CpuInterface::new(&self.config);
        let saved = core::mem::replace(&mut self.interface, fresh);
        for n in Bits(self.slots.used.into()) {
            kick |= self.fold(distributor, n, saved.read(n), &saved);
        }
        self.maintenance = Maintenance::default();
        (kick | self.sync_saved(distributor)).without(self.config.vcpu.into())
    }

    /// Folds list register `n`, which reads as `lr`, back into software state.
    pub(crate) fn fold<L: ListRegisters>(&mut self, distributor: &mut Distributor, n: usize, lr: ListRegister, lrs: &L) -> Kick {
        match block_of(lr.intid()) {
            None => {
                self.slots.fold(&mut self.block, n, lr, lrs);
                Kick::NONE
            }
            Some(b) => {
                self.slots.fold(&mut distributor.blocks[b], n, lr, lrs);
                distributor.notify_moved(b, 1 << (lr.intid() % BLOCK as u32))
            }
        }
    }

    /// Frees list registers that became invalid.
    pub(crate) fn reclaim<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L) -> Kick {
        let mut kick = Kick::NONE;
        for n in Bits((lrs.invalid() & self.slots.used).into()) {
            let lr = lrs.read(n);
            kick |= self.fold(distributor, n, lr, lrs);
            clear(n, lr, lrs);
        }
        kick
    }

    /// Publishes the state of resident SGIs and PPIs, and of the physical lines.
    fn publish_private<L: ListRegisters>(&mut self, lrs: &mut L) {
        self.unpublished = false;
        let terms = Terms { routed: true, overflows: self.overflows() };
        let block = &mut self.block;
        for i in Bits(block.resident) {
            self.slots.refresh(block, block.slot[i].into(), terms, lrs);
        }
        self.lines_seen = 0;
        for i in Bits(self.slots.hw_ppis) {
            match lrs.physical_line(i as u32) {
                Some(true) => self.lines_seen |= 1 << i,
                Some(false) => block.line &= !(1 << i),
                None => {}
            }
        }
    }

    /// Publishes the state of the SPIs resident on this vCPU.
    fn publish_spis<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L) -> Kick {
        let mut kick = Kick::NONE;
        for b in 0..distributor.used_blocks {
            let mine = self.owned(distributor, b, distributor.blocks[b].resident);
            for i in Bits(mine) {
                kick |= self.refresh_spi(distributor, b, i, lrs);
            }
        }
        kick
    }
}

impl Slots {
    /// Frees list registers of SGIs and PPIs that became invalid.
    fn reclaim_private<L: ListRegisters>(&mut self, block: &mut Block, lrs: &mut L) {
        for n in Bits((lrs.invalid() & self.used).into()) {
            let lr = lrs.read(n);
            if block_of(lr.intid()).is_none() {
                self.fold(block, n, lr, lrs);
                clear(n, lr, lrs);
            }
        }
    }
}

/// The distributor's block of `intid`; `None` for an SGI or PPI.
fn block_of(intid: u32) -> Option<usize> {
    (intid as usize / BLOCK).checked_sub(1).map(|b| b % BLOCKS)
}
