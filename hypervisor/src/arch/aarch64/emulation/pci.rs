//! The PCI host bridge that VMs with functions see, and the frame that turns messages into interrupts.

use stile_board::{intid, map};

use crate::arch::aarch64::assigned::Functions;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::interrupts::delivery;
use crate::device::bus::Device;
use crate::vm::power::End;

fn functions(cpu: &Cpu) -> Option<&'static Functions> {
    cpu.vcpu().vm().arch.functions
}

/// Configuration space (ECAM) of bus 0.
pub struct ConfigSpace;

impl Device for ConfigSpace {
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        functions(cpu).map_or(u64::MAX, |functions| functions.read_config(offset, bytes))
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        functions(cpu)?.write_config(&cpu.vcpu().vm().arch, offset, bytes, value);
        None
    }
}

/// The window for BARs, where nothing is mapped.
pub struct PciWindow;

impl Device for PciWindow {
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        functions(cpu).map_or(u64::MAX, |functions| functions.read_memory(offset, bytes))
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        functions(cpu)?.write_memory(offset, bytes, value);
        None
    }
}

/// The MSI frame, with the registers of a GICv2m (Arm Server Base System Architecture, appendix GICv2m).
pub struct MsiFrame;

/// MSI_TYPER.
const TYPER: u64 = 0x8;

impl Device for MsiFrame {
    fn read(&self, _cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        if offset == TYPER { u64::from(intid::MSI_BASE) << 16 | u64::from(intid::MSI_COUNT) } else { 0 }
    }

    /// A vCPU that writes to the doorbell sends a message, as a function does.
    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        let messages = u64::from(intid::MSI_BASE)..u64::from(intid::MSI_BASE + intid::MSI_COUNT);
        if offset == map::MSI_DOORBELL && messages.contains(&value) {
            let vm = cpu.vcpu().vm();
            let kick = vm.arch.distributor.lock().pulse(value as u32);
            delivery::deliver(vm, kick);
        }
        None
    }
}
