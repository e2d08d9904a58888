//! Whether WFI may block.

use crate::interface::{ListRegisters, Maintenance, Vmcr};
use crate::kick::Bits;
use crate::lr::ListRegister;
use crate::redistributor::Redistributor;

/// The group enables of both groups.
const ENABLED: u64 = Vmcr::VENG0 | Vmcr::VENG1;

impl Redistributor {
    /// Whether the virtual CPU interface of this vCPU, which is loaded, would signal an interrupt now,
    /// regardless of PSTATE: then WFI must not block. SPIs are included only after a [`sync`](Self::sync).
    ///
    /// Also true if a maintenance interrupt may be pending that would make one deliverable.
    pub fn has_deliverable<L: ListRegisters>(&self, lrs: &L) -> bool {
        let strays = self.maintenance.0 & Maintenance::LRENPIE != 0;
        strays || self.signals(lrs)
    }

    /// [`has_deliverable`](Self::has_deliverable) for a vCPU that is not loaded.
    pub fn has_deliverable_saved(&self) -> bool {
        self.interface.eoi_count != 0 || self.signals(&self.interface)
    }

    fn signals<L: ListRegisters>(&self, lrs: &L) -> bool {
        let block = &self.block;
        // Posted events of resident interrupts that are not merged yet count as well.
        let posted = block.pending & block.forward & block.resident & (block.recall | self.slots.quick);
        let waiting = block.wanted() & !block.active | posted;
        let (mut valid, mut ended) = (self.slots.used, 0);
        if valid != 0 {
            let invalid = lrs.invalid();
            valid &= !invalid;
            ended = invalid & self.slots.eoi;
        }
        if u32::from(valid | ended) | waiting | self.maintenance.0 == 0 {
            return false;
        }
        let vmcr = lrs.vmcr();
        let running = lrs.running_priority();
        let maintenance = ended != 0 || self.group_change_under_way(vmcr);
        // Sufficient for the highest priority: if the running priority masks it, it masks the others, too.
        let mut highest = (u8::MAX, false);
        let mut consider = |lr: ListRegister| {
            let signals = vmcr.signals(lr.priority(), lr.group1(), running);
            if lr.priority() < highest.0 {
                highest = (lr.priority(), signals);
            } else if lr.priority() == highest.0 {
                highest.1 |= signals;
            }
        };
        let mut none_pending = true;
        for lr in Bits(valid.into()).map(|n| lrs.read(n)) {
            if lr.pending() && !lr.active() && vmcr.group_enabled(lr.group1()) {
                none_pending = false;
                consider(lr);
            }
        }
        Bits(waiting).map(|i| block.entry[i]).filter(|lr| vmcr.group_enabled(lr.group1())).for_each(consider);
        // More interrupts wait in software, possibly SPIs; none of them is deliverable while both groups are disabled.
        highest.1 || maintenance || none_pending && self.maintenance.0 & Maintenance::NPIE != 0 && vmcr.0 & ENABLED != 0
    }

    /// Whether a change of the guest's group enables is asserting a maintenance interrupt.
    fn group_change_under_way(&self, vmcr: Vmcr) -> bool {
        let enables = self.maintenance.0;
        let asks = |enabled, on, off| enables & (if enabled { on } else { off }) != 0;
        asks(vmcr.group_enabled(false), Maintenance::VGRP0EIE, Maintenance::VGRP0DIE)
            || asks(vmcr.group_enabled(true), Maintenance::VGRP1EIE, Maintenance::VGRP1DIE)
    }
}
