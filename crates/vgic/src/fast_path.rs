//! Delivery through [`Shortcuts`]: no lock, one list register.

use core::sync::atomic::Ordering;

use crate::interface::ListRegisters;
use crate::kick::Bits;
use crate::lr::ListRegister;
use crate::shortcuts::{PendingRequests, Requests, Shortcuts};
use crate::{BLOCK, SGIS};

impl Shortcuts {
    /// Makes SGI `intid` (0 to 15, of group 1) pending in its list register. Returns false without a
    /// shortcut.
    #[inline(always)]
    pub fn raise_sgi<L: ListRegisters>(&self, lrs: &mut L, intid: u32) -> bool {
        let i = intid as usize % SGIS;
        let ready = self.ready.load(Ordering::Relaxed) >> i & 1 != 0;
        if ready {
            // It may be active.
            lrs.update(self.slot(i), |lr| lr.with(ListRegister::PENDING));
        }
        ready
    }

    /// Delivers a physical PPI like [`Redistributor::inject_hw_ppi`](crate::Redistributor::inject_hw_ppi).
    /// Returns false without a shortcut.
    #[inline(always)]
    pub fn raise_hw_ppi<L: ListRegisters>(&self, lrs: &mut L, intid: u32) -> bool {
        let i = intid as usize % BLOCK;
        let ready = self.ready.load(Ordering::Relaxed) >> i & 1 != 0;
        if ready {
            // The physical interrupt has fired, so the guest has deactivated it: the list register is
            // invalid.
            lrs.write(self.slot(i), ListRegister(self.pending[i].load(Ordering::Relaxed)));
        }
        ready
    }

    /// Takes pending requests and delivers SGIs with shortcuts. Returns the requests that need the redistributor's
    /// lock.
    #[inline(always)]
    pub fn take_requests<L: ListRegisters>(&self, pending: &PendingRequests, lrs: &mut L) -> Requests {
        let requests = pending.take();
        if requests.0 & !(self.ready.load(Ordering::Relaxed) & PendingRequests::SGIS) != 0 {
            return requests;
        }
        for i in Bits(requests.0 as u32) {
            lrs.update(self.slot(i % SGIS), |lr| lr.with(ListRegister::PENDING));
        }
        Requests(0)
    }

    /// Delivers the SPIs of taken requests that have shortcuts, and returns the remaining requests. Delivers nothing if a
    /// sync with changes is requested, too: they may concern these SPIs, and come first.
    #[inline(always)]
    pub fn raise_posted<L: ListRegisters>(&self, requests: Requests, lrs: &mut L) -> Requests {
        if requests.is_behind_changes() {
            return requests;
        }
        // The common case.
        if let Some(slot) = requests.only_posted().and_then(|intid| self.slot_of_spi(intid)) {
            lrs.update(slot, |lr| lr.with(ListRegister::PENDING));
            return Requests(0);
        }
        let mut raised = 0;
        for intid in requests.posted() {
            if let Some(slot) = self.slot_of_spi(intid) {
                // It may be active.
                lrs.update(slot, |lr| lr.with(ListRegister::PENDING));
                raised |= PendingRequests::spi(intid);
            }
        }
        requests.without(raised)
    }
}
