//! WFI and WFE, which trap only while another vCPU wants the CPU, or where the VM's configuration says so.

use stile_ledger::aarch64 as rows;

use super::skip_instruction;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::cpu::{Leave, Outcome};

/// EC 0x01. ISS.TI says which: WFI, WFE, WFIT, WFET.
#[unsafe(no_mangle)]
pub extern "C" fn handle_wfx(cpu: &mut Cpu, esr: u64) -> Outcome {
    skip_instruction();
    // Forms with a time-out are not offered to guests; whoever executes them all the same waits for no time, as it may.
    cpu.leave = if esr & 0b11 == 0 { Leave::Wait } else { Leave::Yield };
    Outcome::leave(rows::wfx(esr as u32))
}
