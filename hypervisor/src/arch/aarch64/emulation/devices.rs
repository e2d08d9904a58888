//! The devices on a VM's memory bus: `virt`'s UART, clock and interrupt controller.

use stile_board::{map, redistributors};
use stile_bus::{Region, Widths};
use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;

use super::flash::FlashWindow;
use super::gic::{DistributorFrame, RedistributorFrames};
use super::gicv2::{self, DeactivationFrame};
use super::pci::{HostBridge, LpiRedistributors, Messages, MsiFrame};
use super::served::{ServerPages, Transports};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::device::bus::{Optional, devices};

devices! {
    vm:
    /// GICv3 distributor.
    Distributor => &DistributorFrame,
    /// GICv2 distributor.
    DistributorV2 => &gicv2::DistributorFrame,
    /// Second page of a GICv2's CPU interface.
    Deactivation => &DeactivationFrame,
    /// Redistributors of the first vCPUs, or of all.
    Redistributors => &RedistributorFrames { first: 0 },
    /// Redistributors for which there is no room among the first.
    HighRedistributors => &RedistributorFrames { first: map::GICR_FIRST },
    /// PL011.
    Uart => &vm.devices.uart,
    /// PL031.
    Clock => &vm.devices.clock,
    /// BARs and configuration space of PCI functions.
    HostBridge => &HostBridge,
    /// MSI frame for served devices.
    MsiFrame => &MsiFrame,
    /// ITS for PCI functions, and that MSI frame.
    Messages => &Messages,
    /// [`Device::Redistributors`] with LPIs.
    LpiRedistributors => &LpiRedistributors(RedistributorFrames { first: 0 }),
    /// [`Device::HighRedistributors`] with LPIs.
    HighLpiRedistributors => &LpiRedistributors(RedistributorFrames { first: map::GICR_FIRST }),
    /// Flash with firmware's variables.
    Flash => &FlashWindow,
    /// Host bridge of virtio devices that another VM serves.
    Transports => &Transports,
    /// Registers of the devices that the VM serves.
    ServerPages => &ServerPages,
}

impl Device {
    /// The ledger's row of an access.
    pub fn row(self, offset: u64, write: bool) -> RowId {
        let offset = offset as u32;
        match self {
            Device::Distributor | Device::DistributorV2 => rows::gicd(offset, write),
            Device::Deactivation => rows::MMIO_CPU_INTERFACE,
            Device::Redistributors | Device::HighRedistributors | Device::LpiRedistributors | Device::HighLpiRedistributors => {
                rows::gicr(offset % map::GICR_STRIDE as u32, write)
            }
            Device::Uart => rows::pl011(offset, write),
            Device::Clock => rows::pl031(offset, write),
            Device::HostBridge if HostBridge::is_config(offset.into()) => rows::MMIO_PCI_CONFIG,
            Device::HostBridge => rows::MMIO_PCI_MEMORY,
            Device::Messages if Messages::is_its(offset.into()) => rows::MMIO_ITS,
            Device::MsiFrame | Device::Messages => rows::MMIO_MSI_FRAME,
            Device::Flash => rows::MMIO_FLASH,
            Device::Transports if write && Transports::is_kick(offset.into()) => rows::MMIO_VIRTIO_KICK,
            Device::Transports if Transports::is_config(offset.into()) => rows::MMIO_PCI_CONFIG,
            Device::Transports => rows::MMIO_VIRTIO,
            Device::ServerPages if write && ServerPages::is_completion(offset.into()) => rows::MMIO_SERVER_COMPLETION,
            Device::ServerPages => rows::MMIO_SERVER,
        }
    }

    /// Whether a load without an answer waits for another VM, which may need this CPU.
    pub fn waits_for_others(self) -> bool {
        self == Device::Transports
    }
}

/// The regions of a VM's memory bus: one redistributor per vCPU, and nothing after them. Those that are accessed least come
/// last.
pub fn memory_regions(vcpus: usize, optional: Optional) -> impl Iterator<Item = Region<Device>> {
    let region = |base: u64, size: u64, widths, device| Region::new(base..base + size, widths, device);
    let always = [
        region(map::PL011_BASE, map::PL011_SIZE, Widths::ALL, Device::Uart),
        region(map::PL031_BASE, map::PL031_SIZE, Widths::ALL, Device::Clock),
    ];
    let devices = match optional.pci {
        false => [Device::Redistributors, Device::HighRedistributors],
        true => [Device::LpiRedistributors, Device::HighLpiRedistributors],
    };
    let (distributor, deactivation) = match optional.gicv2 {
        false => (region(map::GICD_BASE, map::GICD_SIZE, Widths::ALL, Device::Distributor), None),
        true => (
            region(map::GICD_BASE, map::GICV2_GICD_SIZE, Widths::ALL, Device::DistributorV2),
            // The first page is GICV's.
            Some(region(map::GICC_BASE + 0x1000, 0x1000, Widths::ALL, Device::Deactivation)),
        ),
    };
    let gic = [distributor].into_iter().chain(deactivation);
    let vcpus = if optional.gicv2 { 0 } else { vcpus };
    let redistributors = redistributors(vcpus).into_iter().zip(devices).filter(|((_, vcpus), _)| !vcpus.is_empty());
    let mut redistributors =
        redistributors.map(move |((base, vcpus), device)| region(base, map::GICR_STRIDE * vcpus.len() as u64, Widths::ALL, device));
    let bridge = region(map::PCI_WINDOW_BASE, HostBridge::SIZE, Widths::ALL, Device::HostBridge);
    let frame = region(map::MSI_FRAME_BASE, map::MSI_FRAME_SIZE, Widths::WORD, Device::MsiFrame);
    let messages = region(map::MSI_FRAME_BASE, Messages::SIZE, Widths::ALL, Device::Messages);
    let flash = region(map::FLASH_BASE, map::FLASH_SIZE, Widths::ALL, Device::Flash);
    // No VM has both.
    let transports = region(map::VIRTIO_ECAM_BASE, Transports::SIZE, Widths::ALL, Device::Transports);
    let pages = region(map::SERVER_BASE, map::SERVER_SIZE, Widths::WORD, Device::ServerPages);
    let served = optional.served.then_some(transports).or(optional.serves.then_some(pages));
    let functions = optional.pci.then_some(bridge).into_iter().chain(optional.pci.then_some(messages).or(optional.served.then_some(frame)));
    let first = redistributors.next();
    always.into_iter().chain(gic).chain(first).chain(served).chain(functions).chain(redistributors).chain(optional.flash.then_some(flash))
}

/// Arm has no I/O ports.
pub fn port_regions() -> [Region<Device>; 0] {
    []
}
