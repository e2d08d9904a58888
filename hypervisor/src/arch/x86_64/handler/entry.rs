//! Failed VM entries. Stile's own state passes the checks, so that the guest's state is the cause: only its VM ends.

use stile_ledger::x86_64::reason;
use stile_wire::CrashReason;

use super::crash;
use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::host::cpu::{Cpu, Launch};
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::interrupts::window::VALID;
use crate::arch::x86_64::nested;
use crate::arch::x86_64::vcpu::cr0;
use crate::cpu::Leave;

/// Handles an entry that failed because of invalid guest state ("VM-Entry Failures During or After Loading Guest
/// State").
#[cold]
pub fn refused(cpu: &mut Cpu, exit_reason: u64) -> Outcome {
    if wrap() {
        // Depending on the entry the VMCS may count as launched: it is not.
        cpu.loaded().context().clear_vmcs();
        cpu.launched = Launch::CLEAR;
        cpu.leave = Leave::Resched;
        return Outcome::leave(reason::ENTRY.other());
    }
    crash(cpu, reason::ENTRY.other(), CrashReason::EntryFailed, exit_reason, vmcs::read(Field::EXIT_QUALIFICATION))
}

/// Whether 32-bit code has advanced beyond 4 GiB, for which handlers of exits do not check and with which an entry fails: RIP then wraps
/// around, as in the processor.
pub fn wrap() -> bool {
    let next = vmcs::read(Field::GUEST_RIP);
    let wraps = next >> 32 != 0 && !cr0::runs_64_bit_code();
    if wraps {
        vmcs::write(Field::GUEST_RIP, next & 0xffff_ffff);
    }
    wraps
}

/// Handles VMLAUNCH or VMRESUME with an invalid control ("VM-Execution Control Fields", "VM-Entry Control Fields"),
/// such as an invalid event to inject. Called from `exit.S`; `no_vmcs`: VMfailInvalid.
///
/// # Panics
/// If the cause is not in the guest's part of the VMCS but Stile's: no current VMCS, an unexpected launch state, or
/// invalid host state.
#[unsafe(no_mangle)]
extern "C" fn vm_entry_failed(cpu: &mut Cpu, no_vmcs: bool) -> Outcome {
    /// "VM entry with invalid control field(s)".
    const INVALID_CONTROLS: u64 = 7;
    assert!(!no_vmcs, "VM entry fails: there is no current VMCS");
    let error = vmcs::read(Field::INSTRUCTION_ERROR);
    if let Some(outcome) = nested::failed(cpu, error) {
        // As below.
        cpu.taken += 1;
        cpu.since = timer::now();
        return outcome;
    }
    assert!(error == INVALID_CONTROLS, "VM entry fails with error {error} (VM-instruction error numbers)");
    // It was accounted as an exit with re-entry, which it is not.
    cpu.taken += 1;
    cpu.since = timer::now();
    let event = vmcs::read(Field::ENTRY_INTERRUPTION);
    crash(cpu, reason::ENTRY.other(), CrashReason::EntryFailed, error, event)
}

/// Makes the next entry of the loaded vCPU fail, for tests: see [`stile_board::pc::port::TEST_ENTRY`].
#[cold]
pub fn fail(by: u64) {
    /// Type 1 of an event is reserved ("VM-Entry Controls for Event Injection").
    const RESERVED_EVENT: u64 = VALID | 1 << 8;
    /// There are four activity states ("Guest Non-Register State").
    const NO_ACTIVITY: u64 = 4;
    match by {
        0 => vmcs::write(Field::ENTRY_INTERRUPTION, RESERVED_EVENT),
        _ => vmcs::write(Field::GUEST_ACTIVITY, NO_ACTIVITY),
    }
}
