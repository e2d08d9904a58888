//! VMLAUNCH and VMRESUME that fail before the processor loads guest state.

use stile_ledger::x86_64::reason;
use stile_wire::CrashReason;

use crate::arch::x86_64::handler::crash;
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::vmx::nested;
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::Outcome;

/// Handles VMLAUNCH or VMRESUME with an invalid control ("VM-Execution Control Fields", "VM-Entry Control Fields"),
/// such as an invalid event to inject. Called from `exit.S`; `no_vmcs`: VMfailInvalid.
///
/// # Panics
/// If the cause is not in the guest's part of the VMCS but Stile's: no current VMCS, an unexpected launch state, or
/// invalid host state.
#[unsafe(no_mangle)]
extern "C" fn vm_entry_failed(cpu: &mut WholeCpu, no_vmcs: bool) -> Outcome {
    /// "VM entry with invalid control field(s)".
    const INVALID_CONTROLS: u64 = 7;
    assert!(!no_vmcs, "VM entry fails: there is no current VMCS");
    let error = vmcs::read(Field::INSTRUCTION_ERROR);
    if let Some(outcome) = nested::failed(cpu, error) {
        // Accounted as an exit with re-entry, as below.
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
