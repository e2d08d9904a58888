//! Completion of instructions of L2 that Stile emulates, with L1's monitor trap flag.

use stile_nested_vmx::Field;

use super::state::GuestVmx;
use crate::arch::x86_64::handler::skip_instruction;
use crate::arch::x86_64::vcpu::inject::VALID;
use crate::arch::x86_64::vmx::extension::primary;
use crate::arch::x86_64::vmx::handler::wrap;
use crate::arch::x86_64::vmx::vmcs;

/// In [`Field::ENTRY_INTERRUPTION`], type "other event" with vector 0: a pending exit of the monitor trap flag.
const PENDING: u64 = VALID | 7 << 8;

impl GuestVmx {
    /// Skips an instruction that is done. RIP wraps around at once: L1 may read it before L2's next entry. VMCS02 is current.
    #[inline]
    pub fn skip_instruction(&mut self) {
        skip_instruction();
        wrap();
        self.trap_completed();
    }

    /// Called when an instruction of L2, or an element of a repeated one, is complete: an exit of the monitor trap flag becomes pending
    /// ("Monitor Trap Flag"), for [`take_trap`](Self::take_trap), or the next entry if the vCPU is left. An event to inject traps by itself
    /// once it is delivered. VMCS02 is current.
    #[inline]
    pub fn trap_completed(&mut self) {
        if self.primary12() & primary::MONITOR_TRAP != 0 {
            self.traps |= pend();
        }
    }

    /// Takes an exit of the monitor trap flag that is pending, in the place of the entry which would inject it: Bochs injects it late after an
    /// exit of the first instruction. VMCS02 is current.
    pub fn take_trap(&mut self) {
        self.traps = false;
        vmcs::write(Field::ENTRY_INTERRUPTION, 0);
    }
}

#[cold]
fn pend() -> bool {
    let is_free = vmcs::read(Field::ENTRY_INTERRUPTION) & VALID == 0;
    if is_free {
        vmcs::write(Field::ENTRY_INTERRUPTION, PENDING);
    }
    is_free
}
