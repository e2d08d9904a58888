//! The board's PCI host bridge, as described by its device tree (bindings `pci-host-ecam-generic`, `pci-iommu`,
//! `pci-msi`), and configuration space behind it. Bus 0 only: bridges are not crossed.

use dtoolkit::fdt::FdtNode;
use stile_pci::{Address, ConfigSpace};

use super::mmio::Mmio;
use super::probe;
use crate::address_space::{self, Span};
use stile_firmware::nodes::{cells, spans};

/// Size of bus 0's configuration space.
const BUS_SIZE: u64 = 1 << 20;

/// A host bridge.
pub struct HostBridge {
    /// Configuration space (ECAM), from bus 0 on.
    ecam: Span,
    /// Window of 32-bit memory: CPU addresses.
    pub window: Span,
    /// PCI address of the window's first byte.
    window_pci: u64,
    /// `iommu-map` and `msi-map`: StreamIDs and DeviceIDs of routing IDs.
    streams: Option<Map>,
    devices: Option<Map>,
}

/// First entry of a map of routing IDs.
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
    /// Reads the bridge's node. `None` without configuration space for bus 0, or without a window of 32-bit memory.
    pub fn new(node: FdtNode<'static>) -> Option<HostBridge> {
        /// Space code in the first cell of an address: 32-bit memory.
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

    /// Checks that configuration space answers, and does not overlap the board's `ram`.
    ///
    /// # Errors
    /// Configuration space is not at the address that firmware's tables give.
    pub fn check(&self, ram: &[Span]) -> Result<(), &'static str> {
        let bus = self.ecam.start..self.ecam.start + BUS_SIZE;
        probe::claim("PCI host bridge's configuration space", &bus, ram, BUS_SIZE, 0).map(|_| ())
    }

    /// Configuration space of a function on bus 0.
    pub fn config(&self, function: Address) -> Config {
        let bus = Mmio::new(address_space::device(self.ecam.start..self.ecam.start + BUS_SIZE));
        Config(bus.at((function.ecam_offset() & (BUS_SIZE - 1)) as usize))
    }

    /// PCI address of a CPU address in the window.
    pub fn to_pci(&self, address: u64) -> u64 {
        address - self.window.start + self.window_pci
    }

    /// StreamID of a function's DMA.
    pub fn stream(&self, function: Address) -> Option<u32> {
        self.streams?.get(function)
    }

    /// DeviceID of a function's messages.
    pub fn device(&self, function: Address) -> Option<u32> {
        self.devices?.get(function)
    }

    /// Turns off decoding and bus mastering of all functions on bus 0, and thereby of those behind bridges. A screen among them is no
    /// longer visible: BARs of assigned functions may be placed at its addresses.
    pub fn silence(&self) {
        self.configs().for_each(|mut config| stile_pci::silence(&mut config, &(0..0)));
    }

    /// Turns off bus mastering of all functions on bus 0.
    pub fn stop_masters(&self) {
        self.configs().for_each(|mut config| stile_pci::stop_master(&mut config));
    }

    /// Configuration spaces of bus 0, also of functions that are not there.
    fn configs(&self) -> impl Iterator<Item = Config> {
        (0..=u8::MAX).map(|id| self.config(Address::from_routing_id(id.into())))
    }
}

/// Configuration space of a function.
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
