//! The PCI host bridge of VMs with functions, and their MSI frame.

use stile_board::{intid, map};

use crate::arch::aarch64::assigned::Functions;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::interrupts::delivery;
use crate::device::bus::Device;
use crate::vm::power::End;

fn functions(cpu: &Cpu) -> Option<&'static Functions> {
    cpu.vcpu().vm().arch.functions
}

/// The host bridge's BAR window, where it is unmapped, followed by configuration space: one region, because the bus's
/// number of regions is small.
pub struct HostBridge;

impl HostBridge {
    /// Size of the region.
    pub const SIZE: u64 = CONFIG + map::PCI_ECAM_SIZE;

    /// Whether an offset is in configuration space, or in the unused gap before it.
    pub fn is_config(offset: u64) -> bool {
        offset >= map::PCI_WINDOW_SIZE
    }
}

/// Offset of configuration space in the region.
const CONFIG: u64 = map::PCI_ECAM_BASE - map::PCI_WINDOW_BASE;

/// Offset of an access within configuration space; `None` before it, and for accesses wider than 32 bits.
fn config_offset(offset: u64, bytes: u64) -> Option<u64> {
    offset.checked_sub(CONFIG).filter(|_| bytes <= 4)
}

impl Device for HostBridge {
    #[cold]
    #[inline(never)]
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        let Some(functions) = functions(cpu) else { return u64::MAX };
        match Self::is_config(offset) {
            true => config_offset(offset, bytes).map_or(u64::MAX, |offset| functions.read_config(offset, bytes)),
            false => functions.read_memory(offset, bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let functions = functions(cpu)?;
        match Self::is_config(offset) {
            true => functions.write_config(&cpu.vcpu().vm().arch, config_offset(offset, bytes)?, bytes, value),
            false => functions.write_memory(offset, bytes, value),
        }
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

    /// A vCPU's write to the doorbell sends a message, as a function's would.
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
