//! The ledger's rows of exits of L2.

use stile_ledger::RowId;
use stile_ledger::x86_64::{key, reason as reasons};

use super::state::GuestVmx;
use crate::arch::x86_64::host::cpu::Cpu;

/// Row of an exit that Stile handles.
pub fn own_row(cpu: &mut Cpu, reason: u64) -> RowId {
    cpu.loaded().ledger().frequent_row_for(reasons::L2, key::exit_of_l2(reason as u32, false))
}

/// Row of an exit that is forwarded to L1.
#[inline(always)]
pub fn forwarded_row(cpu: &mut Cpu, vmx: &mut GuestVmx, reason: u64) -> RowId {
    // Rows of a ledger stay.
    match vmx.rows.get_mut(reason as usize) {
        Some(row) if row.is_dynamic() => *row,
        Some(row) => {
            *row = new_row(cpu, reason);
            *row
        }
        None => new_row(cpu, reason),
    }
}

#[cold]
fn new_row(cpu: &mut Cpu, reason: u64) -> RowId {
    cpu.loaded().ledger().row_for(reasons::L2, key::exit_of_l2(reason as u32, true))
}
