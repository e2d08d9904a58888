//! The devices on a VM's buses: their common interface, and the enumeration through which an access reaches them.

use stile_bus::{Bus, Hit};

use crate::arch::Cpu;
use crate::arch::devices::{Device as Id, memory_regions, port_regions};
use crate::vm::power::End;

/// A device that answers loads and stores on a bus. Crate `stile-bus` states which accesses reach it.
pub trait Device {
    /// Loads `bytes` bytes at `offset`. Bits beyond are ignored. `cpu` has the accessing vCPU loaded.
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64;

    /// Loads as [`read`](Self::read) does, or does nothing: `None` if the value is another CPU's and does not come before this CPU is needed for
    /// something else. The guest executes the access again.
    #[inline(always)]
    #[allow(dead_code, reason = "not every architecture has such a device")]
    fn try_read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
        Some(self.read(cpu, offset, bytes))
    }

    /// Stores `bytes` bytes at `offset`; `value` is zero-extended. Returns how the VM ends, if it does.
    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End>;
}

/// Defines the enumeration of a machine's devices: for each a variant, and the place of its [`Device`] in a VM. Reads and writes are
/// dispatched by a `match`, so that no call goes through a pointer.
macro_rules! devices {
    ($vm:ident: $($(#[$doc:meta])* $variant:ident => $device:expr,)+) => {
        /// The devices on a VM's buses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Device {
            $($(#[$doc])* $variant,)+
        }

        impl Device {
            /// Calls the device's [`read`](crate::device::bus::Device::read).
            #[inline]
            #[allow(dead_code, reason = "an architecture with devices that are read only if they answer calls `try_read` alone")]
            pub fn read(self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64 {
                let $vm = cpu.vcpu().vm();
                match self {
                    $(Device::$variant => $crate::device::bus::Device::read($device, cpu, offset, bytes),)+
                }
            }

            /// Calls the device's [`try_read`](crate::device::bus::Device::try_read).
            #[inline]
            #[allow(dead_code, reason = "not every architecture has such a device")]
            pub fn try_read(self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
                let $vm = cpu.vcpu().vm();
                match self {
                    $(Device::$variant => $crate::device::bus::Device::try_read($device, cpu, offset, bytes),)+
                }
            }

            /// Calls the device's [`write`](crate::device::bus::Device::write).
            #[inline]
            pub fn write(self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<$crate::vm::power::End> {
                let $vm = cpu.vcpu().vm();
                match self {
                    $(Device::$variant => $crate::device::bus::Device::write($device, cpu, offset, bytes, value),)+
                }
            }
        }
    };
}
pub(crate) use devices;

/// Devices that not every VM has.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every architecture has them")]
pub struct Optional {
    /// PCI functions, and what belongs to them.
    pub pci: bool,
    /// Flash for the variables of firmware.
    pub flash: bool,
}

/// The most regions of a VM's memory bus.
const MEMORY_REGIONS: usize = 8;
/// The most regions of a VM's port bus.
const PORT_REGIONS: usize = 32;

/// A VM's buses. Built with the VM, and constant.
pub struct Buses {
    /// Guest-physical addresses outside of RAM.
    pub memory: Bus<Id, MEMORY_REGIONS>,
    ports: Bus<Id, PORT_REGIONS>,
}

impl Buses {
    /// The buses of a VM with so many vCPUs.
    ///
    /// # Errors
    /// In words: the machine's regions overlap, or are too many.
    pub fn new(vcpus: usize, optional: Optional) -> Result<Buses, &'static str> {
        const UNUSABLE: &str = "the regions of a VM's devices overlap, or are too many";
        let memory = Bus::new(memory_regions(vcpus, optional)).map_err(|_| UNUSABLE)?;
        let ports = Bus::new(port_regions()).map_err(|_| UNUSABLE)?;
        Ok(Buses { memory, ports })
    }

    /// Finds the device that answers an access at an I/O port. (Not every architecture has ports.)
    #[inline]
    #[allow(dead_code)]
    pub fn port(&self, port: u16, bytes: u64) -> Option<Hit<Id>> {
        self.ports.find(port.into(), bytes)
    }
}
