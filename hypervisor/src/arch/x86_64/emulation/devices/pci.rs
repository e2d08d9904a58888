//! The PCI host bridge of VMs with functions.

use stile_board::pc;

use crate::arch::x86_64::assigned::Functions;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::device::bus::Device;
use crate::vm::power::End;

/// The bridge's window of BARs, where it is unmapped, followed by configuration space.
pub struct HostBridge;

fn functions(cpu: &Cpu) -> Option<&'static Functions> {
    cpu.vcpu().vm().arch.functions
}

/// Offset of an access within configuration space; `None` in the window, and for accesses wider than 32 bits.
fn config_offset(offset: u64, bytes: u64) -> Option<u64> {
    offset.checked_sub(pc::PCI_ECAM.start - pc::PCI_WINDOW.start).filter(|_| bytes <= 4)
}

fn is_config(offset: u64) -> bool {
    offset >= pc::PCI_ECAM.start - pc::PCI_WINDOW.start
}

impl Device for HostBridge {
    #[cold]
    #[inline(never)]
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        let Some(functions) = functions(cpu) else { return u64::MAX };
        match is_config(offset) {
            true => config_offset(offset, bytes).map_or(u64::MAX, |offset| functions.list.read_config(offset, bytes)),
            false => functions.list.read_memory(pc::PCI_WINDOW.start + offset, bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let functions = functions(cpu)?;
        match is_config(offset) {
            true => functions.list.write_config(&cpu.vcpu().vm().arch, config_offset(offset, bytes)?, bytes, value),
            false => functions.list.write_memory(pc::PCI_WINDOW.start + offset, bytes, value),
        }
        None
    }
}
