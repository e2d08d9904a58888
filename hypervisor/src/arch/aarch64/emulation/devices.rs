//! The devices on a VM's memory bus: `virt`'s UART, clock and interrupt controller.

use stile_board::map;
use stile_bus::{Region, Widths};
use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;

use super::gic::{DistributorFrame, RedistributorFrames};
use super::pci::{ConfigSpace, MsiFrame, PciWindow};
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
    /// Configuration space of PCI functions.
    PciConfig => &ConfigSpace,
    /// BARs of PCI functions.
    PciMemory => &PciWindow,
    /// Messages of PCI functions.
    MsiFrame => &MsiFrame,
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
            Device::PciConfig => rows::MMIO_PCI_CONFIG,
            Device::PciMemory => rows::MMIO_PCI_MEMORY,
            Device::MsiFrame => rows::MMIO_MSI_FRAME,
        }
    }
}

/// The memory bus of a VM with so many vCPUs: a redistributor for each, and none behind them. `pci`: it has PCI functions.
pub fn memory_regions(vcpus: usize, pci: bool) -> impl Iterator<Item = Region<Device>> {
    let region = |base: u64, size: u64, widths, device| Region::new(base..base + size, widths, device);
    let always = [
        region(map::GICD_BASE, map::GICD_SIZE, Widths::ALL, Device::Distributor),
        region(map::GICR_BASE, map::GICR_STRIDE * vcpus as u64, Widths::ALL, Device::Redistributors),
        region(map::PL011_BASE, map::PL011_SIZE, Widths::ALL, Device::Uart),
        region(map::PL031_BASE, map::PL031_SIZE, Widths::ALL, Device::Clock),
    ];
    let up_to_word = Widths::BYTE.or(Widths::HALF).or(Widths::WORD);
    let with_functions = [
        region(map::PCI_ECAM_BASE, map::PCI_ECAM_SIZE, up_to_word, Device::PciConfig),
        region(map::PCI_WINDOW_BASE, map::PCI_WINDOW_SIZE, Widths::ALL, Device::PciMemory),
        region(map::MSI_FRAME_BASE, map::MSI_FRAME_SIZE, Widths::WORD, Device::MsiFrame),
    ];
    always.into_iter().chain(with_functions.into_iter().filter(move |_| pci))
}

/// There are no I/O ports.
pub fn port_regions() -> [Region<Device>; 0] {
    []
}
