//! Reads of ports by a byte. The port read last is remembered with its device and its row of the ledger: drivers that poll a device read
//! one port again and again.

use super::block::LastPort;
use crate::arch::x86_64::handler::io;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::cpu::Outcome;

/// Completes an IN AL that was already skipped. A port that no device claims reads as all ones.
#[inline(never)]
pub fn read_byte(cpu: &mut WholeCpu, port: u16) -> Outcome {
    if cpu.virt.port.get().port != port.into() {
        find(cpu, port);
    }
    let LastPort { slot, offset, row, .. } = cpu.virt.port.get();
    let device = slot.and_then(|slot| cpu.vcpu().vm().devices.buses.port_device(slot));
    let value = device.map_or(0xff, |device| device.read(cpu, offset.into(), 1) as u8);
    let rax = &mut cpu.frame.registers[gpr::RAX];
    *rax = *rax & !0xff | u64::from(value);
    Outcome::again(row)
}

/// Remembers a port, until another vCPU is loaded ([`OfCpu::forget`](super::block::OfCpu::forget)).
#[cold]
#[inline(never)]
fn find(cpu: &mut Cpu, port: u16) {
    let found = cpu.vcpu().vm().devices.buses.port_of_bytes(port);
    let (slot, offset) = found.map_or((None, 0), |(slot, offset)| (Some(slot), offset as u16));
    let row = io::row(cpu, port, false);
    cpu.virt.port.set(LastPort { port: port.into(), slot, offset, row });
}
