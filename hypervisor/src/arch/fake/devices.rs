//! The devices on a VM's buses: the UART in memory, the clock at ports, so that both buses are tested.

use stile_board::map;
use stile_bus::{Region, Widths};

use super::physical_cpu::Cpu;
use crate::device::Optional;
use crate::device::bus::devices;

devices! {
    vm:
    /// PL011.
    Uart => &vm.devices.uart,
    /// PL031.
    Clock => &vm.devices.clock,
}

/// Regions of the memory bus.
pub fn memory_regions(_vcpus: usize, _optional: Optional) -> impl Iterator<Item = Region<Device>> {
    core::iter::once(Region::new(map::PL011_BASE..map::PL011_BASE + map::PL011_SIZE, Widths::WORD, Device::Uart))
}

/// Regions of the port bus.
pub fn port_regions() -> [Region<Device>; 1] {
    [Region::new(0x70..0x78, Widths::ALL, Device::Clock)]
}
