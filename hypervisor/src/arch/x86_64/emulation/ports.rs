//! I/O ports.

use crate::arch::x86_64::host::cpu::Cpu;
use crate::vm::power::End;

/// Reads a port; all ones if no device claims it.
#[inline(never)]
pub fn read(cpu: &mut Cpu, port: u16, size: u64) -> u64 {
    let hit = cpu.vcpu().vm().devices.buses.port(port, size);
    hit.map_or(u64::MAX, |hit| hit.device.read(cpu, hit.offset, size))
}

/// Writes a port, which may make interrupts pending; ignored if no device claims it. Returns how the VM ends if the
/// write ends it.
pub fn write(cpu: &mut Cpu, port: u16, size: u64, value: u64) -> Option<End> {
    let hit = cpu.vcpu().vm().devices.buses.port(port, size)?;
    hit.device.write(cpu, hit.offset, size, value)
}
