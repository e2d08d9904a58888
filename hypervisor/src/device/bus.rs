//! The devices on a VM's buses: their common interface, and the enumeration through which an access reaches them.

use stile_bus::{Bus, Hit, Slot};

use crate::arch::Cpu;
use crate::arch::devices::{Device as Id, memory_regions, port_regions};
use crate::vm::power::End;

/// A device that answers loads and stores on a bus. Crate `stile-bus` states which accesses reach it.
pub trait Device {
    /// Loads `bytes` bytes at `offset`. Bits beyond are ignored. `cpu` has the accessing vCPU loaded.
    fn read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> u64;

    /// Loads as [`read`](Self::read) does. Returns `None` without effect if another CPU holds the value and does not
    /// provide it before this CPU must reschedule; the guest then executes the access again.
    #[inline(always)]
    #[allow(dead_code, reason = "not every architecture has such a device")]
    fn try_read(&self, cpu: &mut Cpu, offset: u64, bytes: u64) -> Option<u64> {
        Some(self.read(cpu, offset, bytes))
    }

    /// Stores `bytes` bytes at `offset`; `value` is zero-extended. Returns how the VM ends if the store ends it.
    fn write(&self, cpu: &mut Cpu, offset: u64, bytes: u64, value: u64) -> Option<End>;
}

/// Defines the enumeration of a machine's devices: each variant names the field of a VM with its [`Device`]. A
/// `match` dispatches reads and writes, so that there are no indirect calls.
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

/// Optional devices of a VM.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every architecture has them")]
pub struct Optional {
    /// Assigned PCI functions, and their host bridge.
    pub pci: bool,
    /// Flash for firmware variables.
    pub flash: bool,
    /// Virtio devices that other VMs serve.
    pub served: bool,
    /// A GICv2 instead of a GICv3.
    pub gicv2: bool,
    /// Registers for serving devices to other VMs.
    pub serves: bool,
}

/// Places on a VM's memory bus; one more than regions.
const MEMORY_REGIONS: usize = 8;
/// Places for regions that do not fit there.
const MORE_REGIONS: usize = 4;
/// Maximum number of regions on a VM's port bus.
const PORT_REGIONS: usize = 32;

/// A VM's buses. Built with the VM, then constant.
pub struct Buses {
    /// Guest-physical addresses outside RAM.
    pub memory: Bus<Id, MEMORY_REGIONS>,
    /// Those of the last devices of `memory_regions`, if there are many: a larger bus would cost each access a step.
    more: Bus<Id, MORE_REGIONS>,
    ports: Bus<Id, PORT_REGIONS>,
}

impl Buses {
    /// Builds the buses of a VM with `vcpus` vCPUs.
    ///
    /// # Errors
    /// A description: regions of the machine overlap, or there are too many.
    pub fn new(vcpus: usize, optional: Optional) -> Result<Buses, &'static str> {
        const UNUSABLE: &str = "the regions of a VM's devices overlap, or are too many";
        let regions = || memory_regions(vcpus, optional);
        // On one bus they would not overlap.
        Bus::<Id, { MEMORY_REGIONS + 2 * MORE_REGIONS }>::new(regions()).map_err(|_| UNUSABLE)?;
        let memory = Bus::new(regions().take(MEMORY_REGIONS - 1)).map_err(|_| UNUSABLE)?;
        let more = Bus::new(regions().skip(MEMORY_REGIONS - 1)).map_err(|_| UNUSABLE)?;
        let ports = Bus::new(port_regions()).map_err(|_| UNUSABLE)?;
        Ok(Buses { memory, more, ports })
    }

    /// Finds a device that is not on `memory`. Not inlined: such accesses are rare.
    #[cold]
    #[inline(never)]
    #[allow(dead_code, reason = "not every architecture has so many devices")]
    pub fn find_more(&self, address: u64, bytes: u64) -> Option<Hit<Id>> {
        self.more.find(address, bytes)
    }

    /// Whether a guest-physical address is a device's.
    #[inline]
    #[allow(dead_code, reason = "not every architecture asks")]
    pub fn has_device(&self, address: u64) -> bool {
        self.memory.at(address).is_some() || self.more.at(address).is_some()
    }

    /// Finds the device at an I/O port.
    #[inline]
    #[allow(dead_code, reason = "not every architecture has ports")]
    pub fn port(&self, port: u16, bytes: u64) -> Option<Hit<Id>> {
        self.ports.find(port.into(), bytes)
    }

    /// Finds the region of a port that can be read by a byte, and the port's offset there.
    #[allow(dead_code, reason = "only AMD-V has a fast path for ports")]
    pub fn port_of_bytes(&self, port: u16) -> Option<(Slot, u64)> {
        let slot = self.ports.at(port.into())?;
        self.ports.access(slot, port.into(), 1).map(|hit| (slot, hit.offset))
    }

    /// Returns the device of a region found by [`port_of_bytes`](Self::port_of_bytes).
    #[inline]
    #[allow(dead_code, reason = "only AMD-V has a fast path for ports")]
    pub fn port_device(&self, slot: Slot) -> Option<Id> {
        self.ports.device(slot)
    }
}
