//! What a CPU's block has on every architecture: the vCPU that is loaded, and where its exits are accounted.

use core::mem;

use stile_ledger::Ledger;

use crate::arch::Cpu;
use crate::vm::Vcpu;

impl Cpu {
    /// The vCPU that the exit being handled came from.
    #[inline(always)]
    pub fn vcpu(&self) -> &'static Vcpu {
        // SAFETY: handlers run only for exits, an exit comes from a guest, and a guest runs only when its vCPU is loaded.
        unsafe { self.vcpu.unwrap_unchecked() }
    }

    /// The loaded vCPU's ledger becomes the one that exits are written to.
    pub(super) fn open_ledger(&mut self, ledger: &mut Ledger) {
        self.rows = ledger.rows.as_mut_ptr();
    }

    /// Adds the exits taken since the last call to the ledger.
    pub(super) fn settle_ledger(&mut self, ledger: &mut Ledger) {
        ledger.taken += mem::take(&mut self.taken);
    }
}
