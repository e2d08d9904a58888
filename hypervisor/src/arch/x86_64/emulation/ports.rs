//! I/O ports.

use crate::arch::x86_64::host::cpu::Cpu;
use crate::vm::power::End;

/// Reads a port. All ones if no device answers.
#[inline(never)]
pub fn read(cpu: &mut Cpu, port: u16, size: u64) -> u64 {
    let hit = cpu.vcpu().vm().devices.buses.port(port, size);
    hit.map_or(u64::MAX, |hit| hit.device.read(cpu, hit.offset, size))
}

/// Writes a port, after which interrupts may wait; nothing happens if no device answers. Returns how the VM ends, if it does.
pub fn write(cpu: &mut Cpu, port: u16, size: u64, value: u64) -> Option<End> {
    let hit = cpu.vcpu().vm().devices.buses.port(port, size)?;
    hit.device.write(cpu, hit.offset, size, value)
}
