//! The devices on a VM's memory bus: `virt`'s UART, clock and interrupt controller.

use stile_board::map;
use stile_bus::{Region, Widths};
use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;

use super::gic::{DistributorFrame, RedistributorFrames};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::device::bus::devices;

devices! {
    vm:
    /// GICv3 distributor.
    Distributor => &DistributorFrame,
    /// The redistributors of all vCPUs.
    Redistributors => &RedistributorFrames,
    /// PL011.
    Uart => &vm.devices.uart,
    /// PL031.
    Clock => &vm.devices.clock,
}

impl Device {
    /// The ledger's row of an access.
    pub fn row(self, offset: u64, write: bool) -> RowId {
        let offset = offset as u32;
        match self {
            Device::Distributor => rows::gicd(offset, write),
            Device::Redistributors => rows::gicr(offset % map::GICR_STRIDE as u32, write),
            Device::Uart => rows::pl011(offset, write),
            Device::Clock => rows::pl031(offset, write),
        }
    }
}

/// The memory bus of a VM with so many vCPUs: a redistributor for each, and none behind them.
pub fn memory_regions(vcpus: usize) -> [Region<Device>; 4] {
    let region = |base: u64, size: u64, device| Region::new(base..base + size, Widths::ALL, device);
    [
        region(map::GICD_BASE, map::GICD_SIZE, Device::Distributor),
        region(map::GICR_BASE, map::GICR_STRIDE * vcpus as u64, Device::Redistributors),
        region(map::PL011_BASE, map::PL011_SIZE, Device::Uart),
        region(map::PL031_BASE, map::PL031_SIZE, Device::Clock),
    ]
}

/// There are no I/O ports.
pub fn port_regions() -> [Region<Device>; 0] {
    []
}
