//! The board's PCI host bridge, as its device tree describes it (bindings `pci-host-ecam-generic`, `pci-iommu`, `pci-msi`), and the
//! configuration spaces behind it. Functions on bus 0 only: bridges are not crossed.

use dtoolkit::fdt::FdtNode;
use stile_pci::{Address, ConfigSpace};

use super::mmio::Mmio;
use crate::address_space::{self, Span};
use stile_firmware::nodes::{cells, spans};

/// Bytes of bus 0's configuration spaces.
const BUS_SIZE: u64 = 1 << 20;

/// A host bridge.
pub struct HostBridge {
    /// Configuration spaces, from bus 0 on.
    ecam: Span,
    /// Its window of 32-bit memory: CPU addresses.
    pub window: Span,
    /// The PCI address of the window's first byte.
    window_pci: u64,
    /// `iommu-map`, `msi-map`: what the routing IDs are to the SMMU and to the ITS.
    streams: Option<Map>,
    devices: Option<Map>,
}

/// The first entry of a map of routing IDs.
#[derive(Clone, Copy)]
struct Map {
    from: u32,
    to: u32,
    count: u32,
}

impl Map {
    fn new(node: &FdtNode<'static>, name: &str) -> Option<Map> {
        match cells(node, name)[..] {
            [from, _, to, count, ..] => Some(Map { from, to, count }),
            _ => None,
        }
    }

    fn get(self, function: Address) -> Option<u32> {
        let index = u32::from(function.routing_id()).checked_sub(self.from).filter(|&index| index < self.count)?;
        self.to.checked_add(index)
    }
}

impl HostBridge {
    /// Reads its node. `None` if it has no configuration space for bus 0, or no window of 32-bit memory.
    pub fn new(node: FdtNode<'static>) -> Option<HostBridge> {
        /// The space in the first cell of an address: 32-bit memory.
        const MEMORY32: u32 = 0b10;
        let ecam = spans::<1>(node).pop().filter(|ecam| ecam.end - ecam.start >= BUS_SIZE)?;
        if cells(&node, "bus-range").first().is_some_and(|&first| first != 0) {
            return None;
        }
        let ranges = cells(&node, "ranges");
        let range = ranges.chunks_exact(7).find(|range| range[0] >> 24 & 3 == MEMORY32)?;
        let long = |at: usize| u64::from(range[at]) << 32 | u64::from(range[at + 1]);
        let (window_pci, start, size) = (long(1), long(3), long(5));
        let window = start..start.checked_add(size)?;
        Some(HostBridge { ecam, window, window_pci, streams: Map::new(&node, "iommu-map"), devices: Map::new(&node, "msi-map") })
    }

    /// The configuration space of a function on bus 0.
    pub fn config(&self, function: Address) -> Config {
        let bus = Mmio::new(address_space::device(self.ecam.start..self.ecam.start + BUS_SIZE));
        Config(bus.at((function.ecam_offset() & (BUS_SIZE - 1)) as usize))
    }

    /// The PCI address of an address in the window.
    pub fn to_pci(&self, address: u64) -> u64 {
        address - self.window.start + self.window_pci
    }

    /// The StreamID of a function's requests.
    pub fn stream(&self, function: Address) -> Option<u32> {
        self.streams?.get(function)
    }

    /// The DeviceID of a function's messages.
    pub fn device(&self, function: Address) -> Option<u32> {
        self.devices?.get(function)
    }

    /// Has all functions on bus 0, and with them all that are behind bridges, decode nothing and access nothing, whatever firmware left.
    pub fn silence(&self) {
        (0..=u8::MAX).for_each(|id| stile_pci::silence(&mut self.config(Address::from_routing_id(id.into()))));
    }
}

/// The configuration space of a function.
#[derive(Clone, Copy)]
pub struct Config(Mmio);

impl ConfigSpace for Config {
    fn read(&self, register: u8) -> u32 {
        self.0.read32(register.into())
    }

    fn write(&mut self, register: u8, value: u32) {
        self.0.write32(register.into(), value);
    }
}
