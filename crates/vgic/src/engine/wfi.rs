//! May WFI block?

use crate::interface::ListRegisters;
use crate::kick::Bits;
use crate::redistributor::Redistributor;

impl Redistributor {
    /// Would an interrupt of this vCPU be signalled to its PE now, PSTATE left out of account? What
    /// decides whether WFI may block. SPIs count only after [`sync`](Self::sync).
    pub fn has_deliverable<L: ListRegisters>(&self, lrs: &L) -> bool {
        let block = &self.block;
        let waiting = block.wanted() & !block.active;
        if self.slots.used == 0 && waiting == 0 {
            return false;
        }
        let vmcr = lrs.vmcr();
        let running = lrs.running_priority();
        let resident = Bits(self.slots.used.into()).map(|n| lrs.read(n));
        let resident = resident.filter(|lr| lr.pending() && !lr.active());
        let waiting = Bits(waiting).map(|i| block.entry[i]);
        // Only the highest priority counts: if the running one masks it, then it masks the rest, too.
        let mut highest = (u8::MAX, false);
        for lr in resident
            .chain(waiting)
            .filter(|lr| vmcr.group_enabled(lr.group1()))
        {
            let signals = vmcr.signals(lr.priority(), lr.group1(), running);
            if lr.priority() < highest.0 {
                highest = (lr.priority(), signals);
            } else if lr.priority() == highest.0 {
                highest.1 |= signals;
            }
        }
        highest.1
    }

    /// [`has_deliverable`](Self::has_deliverable) for a vCPU that is not loaded.
    pub fn has_deliverable_saved(&self) -> bool {
        self.has_deliverable(&self.interface)
    }
}
