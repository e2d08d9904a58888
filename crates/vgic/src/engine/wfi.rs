//! May WFI block?

use crate::interface::{ListRegisters, Maintenance, Vmcr};
use crate::kick::Bits;
use crate::lr::ListRegister;
use crate::redistributor::Redistributor;

impl Redistributor {
    /// Would an interrupt of this vCPU, which is loaded, be signalled to its PE now, PSTATE left out of
    /// account? What decides whether WFI may block. SPIs count only after [`sync`](Self::sync).
    ///
    /// Also true if a maintenance interrupt may be under way that leads to one.
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
        // What was posted for a resident interrupt and is still to be merged counts as well.
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
        let mut maintenance = ended != 0 || self.group_change_under_way(vmcr);
        // Only the highest priority counts: if the running one masks it, then it masks the rest, too.
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
        // More waits in software, SPIs perhaps.
        maintenance |= none_pending && self.maintenance.0 & Maintenance::NPIE != 0;
        highest.1 || maintenance
    }

    /// Has the guest enabled or disabled a group while that makes a maintenance interrupt?
    fn group_change_under_way(&self, vmcr: Vmcr) -> bool {
        let enables = self.maintenance.0;
        let asks = |enabled, on, off| enables & (if enabled { on } else { off }) != 0;
        asks(vmcr.group_enabled(false), Maintenance::VGRP0EIE, Maintenance::VGRP0DIE)
            || asks(vmcr.group_enabled(true), Maintenance::VGRP1EIE, Maintenance::VGRP1DIE)
    }
}
