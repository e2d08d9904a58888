//! What a CPU's block has on every architecture: the vCPU that is loaded, and where its exits are accounted.

use core::mem;

use stile_ledger::Ledger;

use super::Leave;
use crate::arch::Cpu;
use crate::stacks;
use crate::vm::Vcpu;

impl Cpu {
    /// The block of CPU `index` under `top`, the upper end of its stack's memory.
    ///
    /// # Safety
    /// That memory is mapped, zeroed, and this CPU's alone; and this is called once for it.
    #[cfg_attr(not(target_os = "none"), allow(dead_code))]
    pub unsafe fn place(top: u64, index: usize) -> &'static mut Cpu {
        // SAFETY: the caller's promise; all-zero is a valid block, with `None` for its references.
        let cpu = unsafe { &mut *(stacks::block(top) as *mut Cpu) };
        cpu.index = index;
        cpu.leave = Leave::Resched;
        cpu
    }

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
