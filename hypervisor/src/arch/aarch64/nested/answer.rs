//! Exits that are answered in the same way as for vCPUs without an EL2.

use crate::arch::aarch64::handler;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::cpu::Outcome;

/// ESR_EL2.EC.
pub mod class {
    pub const WFX: u64 = 0x01;
    pub const HVC: u64 = 0x16;
    pub const SMC: u64 = 0x17;
    pub const SYSREG: u64 = 0x18;
    pub const ERET: u64 = 0x1a;
    pub const DATA_ABORT: u64 = 0x24;
    pub const MOPS: u64 = 0x27;
}

/// Answers as for a vCPU without an EL2.
pub fn answer(cpu: &mut Cpu, esr: u64) -> Outcome {
    match esr >> 26 {
        class::WFX => handler::wfx(cpu, esr),
        class::SYSREG => handler::sysreg(cpu, esr),
        class::DATA_ABORT => handler::data_abort(cpu, esr),
        _ => handler::other(cpu, esr),
    }
}
