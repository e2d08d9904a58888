//! May WFI block?

use crate::interface::{ListRegisters, Maintenance, Vmcr};
use crate::kick::Bits;
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
        if self.slots.used == 0 && waiting == 0 && self.maintenance.0 == 0 {
            return false;
        }
        let vmcr = lrs.vmcr();
        let running = lrs.running_priority();
        let mut maintenance = self.group_change_under_way(vmcr);
        let resident = Bits(self.slots.used.into()).map(|n| lrs.read(n));
        let resident = resident.inspect(|lr| maintenance |= lr.eoi_asserted());
        let resident = resident.filter(|lr| lr.pending() && !lr.active());
        let waiting = Bits(waiting).map(|i| block.entry[i]);
        // Only the highest priority counts: if the running one masks it, then it masks the rest, too.
        let mut highest = (u8::MAX, false);
        for lr in resident.chain(waiting).filter(|lr| vmcr.group_enabled(lr.group1())) {
            let signals = vmcr.signals(lr.priority(), lr.group1(), running);
            if lr.priority() < highest.0 {
                highest = (lr.priority(), signals);
            } else if lr.priority() == highest.0 {
                highest.1 |= signals;
            }
        }
        // Something waits in software, and no list register is pending.
        maintenance |= self.maintenance.0 & Maintenance::NPIE != 0 && highest.0 == u8::MAX;
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
