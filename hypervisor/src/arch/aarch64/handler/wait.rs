//! WFI and WFE, which trap only while another vCPU wants the CPU, or by the VM's configuration.

use stile_ledger::aarch64 as rows;

use super::skip_instruction;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::cpu::{Leave, Outcome};

/// Handles EC 0x01. ISS.TI distinguishes WFI, WFE, WFIT and WFET.
#[unsafe(no_mangle)]
pub extern "C" fn handle_wfx(cpu: &mut Cpu, esr: u64) -> Outcome {
    skip_instruction();
    // Guests are not offered the forms with a time-out; if executed all the same, their wait ends immediately, which
    // is allowed.
    cpu.leave = if esr & 0b11 == 0 { Leave::Wait } else { Leave::Yield };
    Outcome::leave(rows::wfx(esr as u32))
}
