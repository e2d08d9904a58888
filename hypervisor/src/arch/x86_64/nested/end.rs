//! Errors that end a nested VM.

use stile_ledger::RowId;
use stile_wire::CrashReason;

use super::rows::own_row;
use super::state::to_vmcs01;
use crate::arch::x86_64::exit::{Outcome, basic};
use crate::arch::x86_64::handler;
use crate::arch::x86_64::host::cpu::Cpu;

/// Ends the VM: L2 directly accesses a device of L1 in a way that Stile does not emulate.
#[cold]
pub fn unsupported(cpu: &mut Cpu, reason: u64, address: u64) -> Outcome {
    let row = own_row(cpu, reason);
    let outcome = handler::crash(cpu, row, CrashReason::UnknownExit, reason, address);
    to_vmcs01(cpu);
    outcome
}

/// VMX abort: L1's processor would shut down. VMCS01 is current.
#[cold]
pub fn abort(cpu: &mut Cpu, row: RowId) -> Outcome {
    handler::crash(cpu, row, CrashReason::TripleFault, basic::TRIPLE_FAULT, 0)
}
