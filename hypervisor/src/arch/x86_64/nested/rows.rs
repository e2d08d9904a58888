//! The ledger's rows of exits of L2.

use stile_ledger::RowId;
use stile_ledger::x86_64::{key, reason as reasons};

use crate::arch::x86_64::host::cpu::Cpu;

/// Row of an exit that Stile handles.
pub fn own_row(cpu: &mut Cpu, reason: u64) -> RowId {
    cpu.loaded().ledger().row_for(reasons::L2, key::exit_of_l2(reason as u32, false))
}

/// Row of an exit that is forwarded to L1.
pub fn forwarded_row(cpu: &mut Cpu, reason: u64) -> RowId {
    cpu.loaded().ledger().row_for(reasons::L2, key::exit_of_l2(reason as u32, true))
}
