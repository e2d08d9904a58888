//! I/O ports.

use crate::arch::x86_64::host::cpu::Cpu;
use crate::vm::power::End;

/// Reads a port; all ones if no device claims it.
#[inline(never)]
pub fn read(cpu: &mut Cpu, port: u16, size: u64) -> u64 {
    let hit = cpu.vcpu().vm().devices.buses.port(port, size);
    hit.map_or(u64::MAX, |hit| hit.device.read(cpu, hit.offset, size))
}

/// Reads a byte as [`read`] does, but tries the region of the last access first, as the next access is likely there.
#[inline(always)]
#[allow(dead_code, reason = "VMX does not use it")]
pub fn read_byte(cpu: &mut Cpu, port: u16) -> u8 {
    let buses = &cpu.vcpu().vm().devices.buses;
    let hit = buses.port_near(&mut cpu.last_port, port, 1);
    hit.map_or(0xff, |hit| hit.device.read(cpu, hit.offset, 1) as u8)
}

/// Writes a port, which may make interrupts pending; ignored if no device claims it. Returns how the VM ends if the
/// write ends it.
pub fn write(cpu: &mut Cpu, port: u16, size: u64, value: u64) -> Option<End> {
    let hit = cpu.vcpu().vm().devices.buses.port(port, size)?;
    hit.device.write(cpu, hit.offset, size, value)
}
