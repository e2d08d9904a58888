//! More interrupts in flight than list registers.
//!
//! Then list registers hold the interrupts of the highest priority, at least one of them pending and
//! no more (neither active nor of a disabled group) as long as any such interrupt waits in software.
//! The guest takes that one in the end, which leaves no list register pending, and the no-pending
//! maintenance interrupt brings us here again. An active interrupt that has no list register is found
//! again by the count of deactivations (EOImode 0) or by a trap of ICC_DIR_EL1 (EOImode 1).

use super::{Terms, block_of, clear};
use crate::BLOCK;
use crate::distributor::Distributor;
use crate::interface::{ListRegisters, MAX_LIST_REGISTERS, Maintenance, Vmcr};
use crate::kick::{Bits, Kick};
use crate::lr::ListRegister;
use crate::redistributor::Redistributor;

/// The interrupts of the highest priority among those offered, in order.
struct Best {
    entries: [ListRegister; MAX_LIST_REGISTERS],
    /// How many of `entries` count.
    kept: usize,
    /// How many were offered.
    offered: usize,
}

impl Best {
    const fn new() -> Self {
        Self { entries: [ListRegister::INVALID; MAX_LIST_REGISTERS], kept: 0, offered: 0 }
    }

    /// Considers one more.
    fn offer(&mut self, entry: ListRegister) {
        self.offered += 1;
        let better = |e: &ListRegister| e.priority() <= entry.priority();
        let at = self.entries[..self.kept].partition_point(better);
        if at == MAX_LIST_REGISTERS {
            return;
        }
        self.kept = (self.kept + 1).min(MAX_LIST_REGISTERS);
        self.entries[at..self.kept].rotate_right(1);
        self.entries[at] = entry;
    }

    /// The best `n`.
    fn first(&self, n: usize) -> &[ListRegister] {
        &self.entries[..n.min(self.kept)]
    }
}

/// All that would like a list register.
struct Candidates {
    /// Pending, of a group that is enabled at the CPU interface.
    live: Best,
    /// Pending, of a group that is not.
    dead: Best,
    /// Active.
    active: Best,
    vmcr: Vmcr,
}

impl Candidates {
    fn offer(&mut self, entry: ListRegister, acknowledged: ListRegister, active: bool) {
        if active {
            self.active.offer(acknowledged);
        } else if self.vmcr.group_enabled(entry.group1()) {
            self.live.offer(entry);
        } else {
            self.dead.offer(entry);
        }
    }
}

impl Redistributor {
    /// Takes everything out of the list registers, and puts in what is most urgent.
    #[cold]
    pub(super) fn choose_anew<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L) -> Kick {
        let mut kick = Kick::NONE;
        let mut old = [ListRegister::INVALID; MAX_LIST_REGISTERS];
        for n in Bits(self.slots.used.into()) {
            let lr = lrs.read(n);
            old[n] = lr;
            kick |= self.fold(distributor, n, lr, lrs);
        }

        let candidates = self.candidates(distributor, lrs.vmcr());
        let Candidates { live, dead, active, .. } = &candidates;
        let count = self.slots.all.count_ones() as usize;
        // Interrupts that are active had better stay, because their end is costly otherwise.
        let actives = active.offered.min(count - usize::from(live.offered != 0));
        let lives = live.offered.min(count - actives);
        let deads = dead.offered.min(count - actives - lives);
        let waiting = live.offered - lives + dead.offered - deads;
        let crowded = waiting != 0 || actives < active.offered;

        // Those that stay keep their list registers, the others fill up.
        let chosen = || {
            let active = active.first(actives).iter();
            active.chain(live.first(lives)).chain(dead.first(deads))
        };
        let kept = |entry: &ListRegister| old.iter().position(|lr| lr.holds(entry.intid()));
        let mut free = self.slots.all;
        for (entry, n) in chosen().filter_map(|entry| Some((entry, kept(entry)?))) {
            free &= !(1 << n);
            self.put(distributor, n, *entry, crowded, lrs);
        }
        let moved = chosen().filter(|entry| kept(entry).is_none());
        for (entry, n) in moved.zip(Bits(free.into())) {
            self.put(distributor, n, *entry, crowded, lrs);
        }
        for n in Bits((!self.slots.used).into()) {
            clear(n, old[n], lrs);
        }

        let mut enables = 0;
        if live.offered > lives {
            enables |= Maintenance::NPIE;
        }
        if waiting != 0 {
            enables |= group_changes(candidates.vmcr);
        }
        if actives < active.offered {
            enables |= Maintenance::LRENPIE | Maintenance::TDIR;
        }
        self.set_maintenance(Maintenance(enables), lrs);
        kick
    }

    /// Deactivations that found no list register, with EOImode 0: the guest ends interrupts in the
    /// reverse order of their acknowledgement, so each was that of the highest priority.
    pub(super) fn account_deactivations<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L) -> Kick {
        let mut kick = Kick::NONE;
        if self.maintenance.0 & Maintenance::LRENPIE == 0 {
            return kick;
        }
        let count = lrs.take_eoi_count() + core::mem::take(&mut self.interface.eoi_count);
        if lrs.vmcr().eoi_split() {
            // EOIs only drop the priority then, and writes of ICC_DIR_EL1 are trapped. QEMU counts such EOIs all the same.
            return kick;
        }
        for _ in 0..count {
            let Some(intid) = self.most_urgent_stray(distributor) else {
                break;
            };
            let bit = 1 << (intid % BLOCK as u32);
            match block_of(intid) {
                None => _ = self.block.clear_active(bit),
                Some(b) => {
                    distributor.blocks[b].clear_active(bit);
                    kick |= distributor.attend_moved(b, bit);
                }
            }
        }
        kick
    }

    /// The active interrupt of the highest priority that has no list register. Those that the guest
    /// made active by a register write come after all that it acknowledged.
    fn most_urgent_stray(&self, distributor: &Distributor) -> Option<u32> {
        let private = self.block.active & !self.block.resident;
        let private = Bits(private).map(|i| (&self.block, i));
        let spis = (0..distributor.spi_blocks).flat_map(|b| {
            let block = &distributor.blocks[b];
            let mine = self.owned(distributor, b, block.active & !block.resident);
            Bits(mine).map(move |i| (block, i))
        });
        private
            .chain(spis)
            .min_by_key(|(block, i)| (block.written >> i & 1, block.acknowledged[*i].priority()))
            .map(|(block, i)| block.entry[i].intid())
    }

    fn candidates(&self, distributor: &Distributor, vmcr: Vmcr) -> Candidates {
        let mut candidates = Candidates { live: Best::new(), dead: Best::new(), active: Best::new(), vmcr };
        let blocks = core::iter::once((&self.block, self.block.wanted()))
            .chain(distributor.blocks.iter().enumerate().map(|(b, block)| (block, self.owned(distributor, b, block.wanted()))));
        for (block, bits) in blocks {
            for i in Bits(bits) {
                let active = block.active >> i & 1 != 0;
                candidates.offer(block.entry[i], block.acknowledged[i], active);
            }
        }
        candidates
    }

    /// Puts the interrupt of `entry` into list register `n`, if it still wants one.
    fn put<L: ListRegisters>(&mut self, distributor: &mut Distributor, n: usize, entry: ListRegister, crowded: bool, lrs: &mut L) {
        let i = entry.intid() as usize % BLOCK;
        match block_of(entry.intid()) {
            None => {
                let terms = Terms { routed: true, crowded };
                self.slots.place(&mut self.block, i, n, terms, lrs);
            }
            Some(b) => _ = self.place_spi(distributor, b, i, n, crowded, lrs),
        }
    }

    fn set_maintenance<L: ListRegisters>(&mut self, enables: Maintenance, lrs: &mut L) {
        let before = core::mem::replace(&mut self.maintenance, enables);
        if before == enables {
            return;
        }
        if before.0 & Maintenance::LRENPIE == 0 && enables.0 & Maintenance::LRENPIE != 0 {
            // Stray ends of interrupt have been counted all along.
            lrs.take_eoi_count();
        }
        lrs.set_maintenance(enables);
    }
}

/// The maintenance enables that report when the guest enables or disables a group at its CPU interface.
/// Only the change is asked for: what holds already would be asserted at once.
///
/// Disabling the only enabled group needs no answer, as nothing can be delivered until a group is enabled. Asking
/// for it would also hang the vCPU on QEMU (10.0, `maintenance_interrupt_state`), which derives VGrp0D from VENG1: with
/// group 0 alone enabled it would be asserted for good. With both enabled, QEMU reports group 0's end with group 1's.
fn group_changes(vmcr: Vmcr) -> u32 {
    match (vmcr.group_enabled(false), vmcr.group_enabled(true)) {
        (true, true) => Maintenance::VGRP0DIE | Maintenance::VGRP1DIE,
        (true, false) => Maintenance::VGRP1EIE,
        (false, true) => Maintenance::VGRP0EIE,
        (false, false) => Maintenance::VGRP0EIE | Maintenance::VGRP1EIE,
    }
}
