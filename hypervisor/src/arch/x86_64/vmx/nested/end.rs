//! Errors that end a nested VM.

use stile_ledger::RowId;
use stile_nested_vmx::vmcs12::ABORT_OFFSET;
use stile_wire::CrashReason;

use super::operand::Page;
use super::rows::own_row;
use super::state::{GuestVmx, to_vmcs01};
use crate::arch::x86_64::handler;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::cpu::Outcome;

/// Ends the VM: L2 directly accesses a device of L1 in a way that Stile does not emulate.
#[cold]
pub fn unsupported(cpu: &mut Cpu, reason: u64, address: u64) -> Outcome {
    let row = own_row(cpu, reason);
    let outcome = handler::crash(cpu, row, CrashReason::UnknownExit, reason, address);
    to_vmcs01(cpu);
    outcome
}

/// Causes of a VMX abort, with the values of its VMX-abort indicator (the manual, "VMX Aborts").
#[derive(Clone, Copy)]
pub enum Abort {
    /// A guest MSR could not be saved.
    SavingMsrs = 1,
    /// The host's page-directory-pointer-table entries are invalid.
    HostPdptes = 2,
    /// A host MSR could not be loaded.
    LoadingMsrs = 4,
}

/// Performs a VMX abort: writes the indicator to the current VMCS of L1, if it is in memory, and ends the VM, since L1's
/// processor would shut down. VMCS01 is current.
#[cold]
pub fn abort(cpu: &mut Cpu, vmx: &GuestVmx, row: RowId, cause: Abort) -> Outcome {
    let indicator = cause as u64;
    if let Some(page) = Page::at(cpu, vmx.address()) {
        page.write(0, page.read(0) & 0xffff_ffff | indicator << (8 * ABORT_OFFSET));
    }
    handler::crash(cpu, row, CrashReason::VmxAbort, indicator, vmx.address())
}
