//! Devices that other VMs serve, on a PCI host bridge of their own, and registers of those that the VM serves.

use stile_board::map;

use crate::arch::aarch64::host::cpu::Cpu;
use crate::device::bus::Device;
use crate::served::{self, Served};
use crate::vm::power::End;

/// The PCI host bridge of a client's devices: configuration space, and behind it the window for BARs.
pub struct Transports;

const _: () = assert!(map::VIRTIO_WINDOW_BASE == map::VIRTIO_ECAM_BASE + map::PCI_ECAM_SIZE);

impl Transports {
    /// Size of the region, which starts with configuration space.
    pub const SIZE: u64 = map::PCI_ECAM_SIZE + map::VIRTIO_WINDOW_SIZE;

    /// Whether an offset is in configuration space.
    pub fn is_config(offset: u64) -> bool {
        offset < map::PCI_ECAM_SIZE
    }

    /// Whether a store at this offset kicks the server.
    pub fn is_kick(offset: u64) -> bool {
        !Self::is_config(offset) && served::is_kick(offset)
    }

    fn served(cpu: &Cpu) -> Option<&'static Served> {
        cpu.vcpu().vm().arch.served
    }

    /// Number of the device whose configuration space has an offset: functions are function 0 of devices 1 and up.
    fn index(offset: u64) -> Option<usize> {
        let id = (offset >> 12) as usize;
        (id & 7 == 0).then_some(id >> 3)?.checked_sub(1)
    }
}

impl Device for Transports {
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
        self.try_read(cpu, offset, bytes).unwrap_or(0)
    }

    /// Functions that the configuration does not have read as all ones, as do addresses of no BAR.
    #[inline(never)]
    fn try_read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
        let Some(served) = Self::served(cpu) else { return Some(u64::MAX) };
        if Self::is_config(offset) {
            return Some(Self::index(offset).map_or(u64::MAX, |index| served.read_config(index, offset, bytes)));
        }
        served.read_bar(map::VIRTIO_ECAM_BASE + offset, bytes).unwrap_or(Some(u64::MAX))
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End> {
        let served = Self::served(cpu)?;
        if Self::is_config(offset) {
            served.write_config(Self::index(offset)?, offset, bytes, value);
        } else {
            served.write_bar(map::VIRTIO_ECAM_BASE + offset, bytes, value);
        }
        None
    }
}

/// The registers of the devices that a VM serves, a page for each.
pub struct ServerPages;

impl ServerPages {
    /// Whether a store at this offset signals a completion.
    pub fn is_completion(offset: u64) -> bool {
        served::is_completion(offset)
    }
}

impl Device for ServerPages {
    fn read(&self, cpu: &mut Cpu, offset: u64, _bytes: u64) -> u64 {
        cpu.vcpu().vm().arch.served.map_or(0, |served| served.read_register(offset))
    }

    fn write(&self, cpu: &mut Cpu, offset: u64, _bytes: u64, value: u64) -> Option<End> {
        cpu.vcpu().vm().arch.served?.write_register(offset, value);
        None
    }
}
