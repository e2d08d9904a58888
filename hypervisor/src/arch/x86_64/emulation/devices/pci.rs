//! The PCI host bridge of VMs with functions, their own and those that other VMs serve, and registers of those that the VM serves.

use stile_board::pc;

use crate::arch::x86_64::assigned::Functions;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::device::bus::Device;
use crate::served::Served;
use crate::vm::power::End;

/// The bridge's window of BARs, where it is unmapped, followed by configuration space.
pub struct HostBridge;

fn functions(cpu: &Cpu) -> Option<&'static Functions> {
    cpu.vcpu().vm().arch.functions
}

fn served(cpu: &Cpu) -> Option<&'static Served> {
    cpu.vcpu().vm().arch.served
}

/// Offset of an access within configuration space; `None` in the window, and for accesses wider than 32 bits.
fn config_offset(offset: u64, bytes: u64) -> Option<u64> {
    offset.checked_sub(pc::PCI_ECAM.start - pc::PCI_WINDOW.start).filter(|_| bytes <= 4)
}

fn is_config(offset: u64) -> bool {
    offset >= pc::PCI_ECAM.start - pc::PCI_WINDOW.start
}

/// Number of the served device whose configuration space has an offset: function 0 of devices [`pc::SERVED_DEVICES`] and up.
fn served_index(offset: u64) -> Option<usize> {
    let id = (offset >> 12) as usize;
    (id & 7 == 0).then_some(id >> 3)?.checked_sub(pc::SERVED_DEVICES)
}

impl Device for HostBridge {
    #[cold]
    #[inline(never)]
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        if is_config(offset) {
            let Some(offset) = config_offset(offset, bytes) else { return u64::MAX };
            return match (served_index(offset), functions(cpu)) {
                (Some(index), _) => served(cpu).map_or(u64::MAX, |served| served.read_config(index, offset, bytes)),
                (None, Some(functions)) => functions.list.read_config(offset, bytes),
                (None, None) => u64::MAX,
            };
        }
        let address = pc::PCI_WINDOW.start + offset;
        match served(cpu).and_then(|served| Some((served, served.read_bar(address, bytes)?))) {
            // A load waits before it is emulated (`Served::must_wait`), but for one whose server has gone offline since.
            Some((served, value)) => value.unwrap_or_else(|| served.read_bar_at_once(address, bytes)),
            None => functions(cpu).map_or(u64::MAX, |functions| functions.list.read_memory(address, bytes)),
        }
    }

    #[cold]
    #[inline(never)]
    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        if is_config(offset) {
            let offset = config_offset(offset, bytes)?;
            match served_index(offset) {
                Some(index) => served(cpu)?.write_config(index, offset, bytes, value),
                None => functions(cpu)?.list.write_config(&cpu.vcpu().vm().arch, offset, bytes, value),
            }
            return None;
        }
        let address = pc::PCI_WINDOW.start + offset;
        if served(cpu).and_then(|served| served.write_bar(address, bytes, value)).is_none() {
            functions(cpu)?.list.write_memory(address, bytes, value);
        }
        None
    }
}

/// The registers of the devices that a VM serves, a page for each.
pub struct ServerPages;

impl Device for ServerPages {
    #[cold]
    #[inline(never)]
    fn read(&self, cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        cpu.vcpu().vm().arch.served.map_or(0, |served| served.read_register(offset))
    }

    #[cold]
    #[inline(never)]
    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        cpu.vcpu().vm().arch.served?.write_register(offset, value);
        None
    }
}
