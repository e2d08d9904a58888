//! VM entries that fail while the processor loads guest state. Stile's own state passes the checks, so the guest's is the
//! cause, and only its VM ends.

use stile_ledger::x86_64::reason;
use stile_wire::CrashReason;

use crate::arch::x86_64::handler::crash;
use crate::arch::x86_64::host::cpu::{Cpu, Launch};
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::{Leave, Outcome};

/// Handles an entry that failed because of invalid guest state ("VM-Entry Failures During or After Loading Guest
/// State").
#[cold]
pub fn refused(cpu: &mut Cpu, exit_reason: u64) -> Outcome {
    if wrap() {
        // Whether the VMCS counts as launched depends on the failed entry: cleared, it certainly does not.
        cpu.loaded().context().attach_again();
        cpu.launched = Launch::CLEAR;
        cpu.leave = Leave::Resched;
        return Outcome::leave(reason::ENTRY.other());
    }
    crash(cpu, reason::ENTRY.other(), CrashReason::EntryFailed, exit_reason, vmcs::read(Field::EXIT_QUALIFICATION))
}

/// Wraps RIP around if 32-bit code has advanced beyond 4 GiB, as the processor does. Returns whether it has. Exit handlers
/// advance RIP without this check, and an entry with such an RIP fails.
pub fn wrap() -> bool {
    let next = vmcs::read(Field::GUEST_RIP);
    let wraps = next >> 32 != 0 && !cr0::runs_64_bit_code();
    if wraps {
        vmcs::write(Field::GUEST_RIP, next & 0xffff_ffff);
    }
    wraps
}
