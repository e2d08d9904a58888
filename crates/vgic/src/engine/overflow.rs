//! List-register overflow: more interrupts in flight than list registers.
//!
//! Then list registers hold the interrupts of the highest priority. As long as a deliverable interrupt waits
//! in software, at least one list register is pending only: not active, and of an enabled group. The guest
//! eventually takes it, which leaves no list register pending, and the no-pending maintenance interrupt leads
//! here again. An active interrupt without a list register is found at its deactivation, by EOIcount
//! (EOImode 0) or by the trap of ICC_DIR_EL1 (EOImode 1).

use super::{Terms, block_of, clear};
use crate::BLOCK;
use crate::distributor::Distributor;
use crate::interface::{ListRegisters, Maintenance, Vmcr};
use crate::kick::{Bits, Kick};
use crate::lr::{ListRegister, MAX_LIST_REGISTERS};
use crate::redistributor::Redistributor;

/// The highest-priority interrupts among those offered, sorted.
struct Best {
    entries: [ListRegister; MAX_LIST_REGISTERS],
    /// Number of valid `entries`.
    kept: usize,
    /// Number of interrupts offered.
    offered: usize,
}

impl Best {
    const fn new() -> Self {
        Self { entries: [ListRegister::INVALID; MAX_LIST_REGISTERS], kept: 0, offered: 0 }
    }

    /// Considers another interrupt.
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

/// All interrupts that need a list register.
struct Candidates {
    /// Pending, with the group enabled at the CPU interface.
    live: Best,
    /// Pending, with the group disabled at the CPU interface.
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
    /// Takes all interrupts out of the list registers and reselects the most urgent ones.
    #[cold]
    pub(super) fn choose_anew<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L) -> Kick {
        let mut kick = Kick::NONE;
        let mut old = [ListRegister::INVALID; MAX_LIST_REGISTERS];
        for n in Bits(self.slots.used.into()) {
            let lr = lrs.read(n);
            old[n] = lr;
            kick |= self.fold(distributor, n, lr, lrs);
        }

        // An interrupt that is chosen must be pending: with no list register pending afterwards, the maintenance interrupt
        // for that stays asserted, and the hypervisor disables it, although others wait.
        for i in Bits(self.slots.held & self.block.line) {
            self.slots.sample(&mut self.block, i, lrs);
        }
        let candidates = self.candidates(distributor, lrs.vmcr());
        let Candidates { live, dead, active, .. } = &candidates;
        let count = self.slots.all.count_ones() as usize;
        // Active interrupts keep list registers: their end would otherwise exit.
        let actives = active.offered.min(count - usize::from(live.offered != 0));
        let lives = live.offered.min(count - actives);
        let deads = dead.offered.min(count - actives - lives);
        let waiting = live.offered - lives + dead.offered - deads;
        let overflows = waiting != 0 || actives < active.offered;

        // Chosen interrupts that are resident keep their list registers; the others fill the rest.
        let chosen = || {
            let active = active.first(actives).iter();
            active.chain(live.first(lives)).chain(dead.first(deads))
        };
        let kept = |entry: &ListRegister| old.iter().position(|lr| lr.holds(entry.intid()));
        let mut free = self.slots.all;
        for (entry, n) in chosen().filter_map(|entry| Some((entry, kept(entry)?))) {
            free &= !(1 << n);
            self.put(distributor, n, *entry, overflows, lrs);
        }
        let moved = chosen().filter(|entry| kept(entry).is_none());
        for (entry, n) in moved.zip(Bits(free.into())) {
            self.put(distributor, n, *entry, overflows, lrs);
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

    /// Accounts for deactivations without a list register, with EOImode 0: the guest ends interrupts in the
    /// reverse order of acknowledgement, so each ended the one of the highest priority.
    pub(super) fn account_deactivations<L: ListRegisters>(&mut self, distributor: &mut Distributor, lrs: &mut L) -> Kick {
        let mut kick = Kick::NONE;
        if self.maintenance.0 & Maintenance::LRENPIE == 0 {
            return kick;
        }
        let count = lrs.take_eoi_count() + core::mem::take(&mut self.interface.eoi_count);
        if lrs.vmcr().eoi_split() {
            // With EOImode 1, EOIs only drop the priority, and writes of ICC_DIR_EL1 are trapped. QEMU counts
            // such EOIs nevertheless.
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
                    kick |= distributor.notify_moved(b, bit);
                }
            }
        }
        kick
    }

    /// The highest-priority active interrupt without a list register. Those made active by a register write
    /// follow all acknowledged ones.
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
        let blocks = core::iter::once((&self.block, self.block.wanted())).chain(
            distributor.blocks[..distributor.used_blocks]
                .iter()
                .enumerate()
                .map(|(b, block)| (block, self.owned(distributor, b, block.wanted()))),
        );
        for (block, bits) in blocks {
            for i in Bits(bits) {
                let active = block.active >> i & 1 != 0;
                candidates.offer(block.entry[i], block.acknowledged[i], active);
            }
        }
        candidates
    }

    /// Puts the interrupt of `entry` into list register `n`, if it still needs one.
    fn put<L: ListRegisters>(&mut self, distributor: &mut Distributor, n: usize, entry: ListRegister, overflows: bool, lrs: &mut L) {
        let i = entry.intid() as usize % BLOCK;
        match block_of(entry.intid()) {
            None => {
                let terms = Terms { routed: true, overflows };
                self.slots.place(&mut self.block, i, n, terms, lrs);
            }
            Some(b) => _ = self.place_spi(distributor, b, i, n, overflows, lrs),
        }
    }

    fn set_maintenance<L: ListRegisters>(&mut self, enables: Maintenance, lrs: &mut L) {
        let before = core::mem::replace(&mut self.maintenance, enables);
        if before == enables {
            return;
        }
        if before.0 & Maintenance::LRENPIE == 0 && enables.0 & Maintenance::LRENPIE != 0 {
            // Earlier counts of EOIcount are stray ends of interrupt.
            lrs.take_eoi_count();
        }
        lrs.set_maintenance(enables);
    }
}

/// The maintenance enables that report changes of the guest's group enables at its CPU interface. Only a
/// change is enabled: the current state would be asserted immediately.
///
/// Disabling the only enabled group needs no report: nothing is deliverable until a group is enabled.
/// Enabling that report would also hang the vCPU on QEMU (10.0, `maintenance_interrupt_state`), which derives
/// VGrp0D from VENG1: with group 0 alone enabled, VGrp0D would stay asserted. With both enabled, QEMU reports
/// disabling of group 0 when group 1 is disabled.
fn group_changes(vmcr: Vmcr) -> u32 {
    match (vmcr.group_enabled(false), vmcr.group_enabled(true)) {
        (true, true) => Maintenance::VGRP0DIE | Maintenance::VGRP1DIE,
        (true, false) => Maintenance::VGRP1EIE,
        (false, true) => Maintenance::VGRP0EIE,
        (false, false) => Maintenance::VGRP0EIE | Maintenance::VGRP1EIE,
    }
}
