//! RDPMC.

use crate::arch::x86_64::host::cpu::gpr;
use crate::arch::x86_64::host::pmu;
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;

/// Handles RDPMC, whose next RIP is known: for guests that measure, a counter of the CPU's; #GP for others, as without a PMU.
pub fn read(cpu: &mut WholeCpu) {
    let counter = cpu.frame.registers[gpr::RCX] as u32;
    match cpu.vcpu().vm().techniques.counters.then(|| pmu::read(counter)).flatten() {
        Some(value) => {
            cpu.frame.registers[gpr::RAX] = value & 0xffff_ffff;
            cpu.frame.registers[gpr::RDX] = value >> 32;
            super::skip_instruction();
        }
        None => inject::general_protection(),
    }
}
