//! The board's PCI host bridge, as described by its device tree (bindings `pci-host-ecam-generic`, `pci-iommu`,
//! `pci-msi`), and configuration space behind it. Functions of bus 0 are assigned; those of other buses are turned off only.

use dtoolkit::Node;
use dtoolkit::fdt::FdtNode;
use heapless::Vec;
use stile_pci::register::{HEADER, ID};
use stile_pci::{Address, Bar, ConfigSpace, Immovable, Kept, PAGE};

use super::mmio::Mmio;
use super::probe::{self, Probed};
use crate::address_space::{self, Span};
use stile_firmware::nodes::{cells, spans};
use stile_firmware::pci_map::PciMap;
use stile_firmware::root_bridge::{MOST_WINDOWS, Window};

/// Size of a bus's configuration space.
const BUS_SIZE: u64 = 1 << 20;
/// Maximum number of buses.
const MOST_BUSES: u64 = 256;

/// A host bridge.
pub struct HostBridge {
    /// Configuration space (ECAM), from bus 0 on.
    pub ecam: Span,
    /// Number of buses that have configuration space: 1 to 256.
    buses: u16,
    /// Windows of memory.
    windows: Vec<Window, MOST_WINDOWS>,
    /// BARs stay where firmware put them: windows are only the memory that firmware has assigned.
    pub keeps_bars: bool,
    /// DMA of functions is cache-coherent.
    pub is_coherent: bool,
    /// `iommu-map` and `msi-map`: StreamIDs and DeviceIDs of routing IDs.
    streams: PciMap,
    devices: PciMap,
}

impl HostBridge {
    /// Reads the bridge's node, in a tree with these nodes of an SMMU and an ITS. `keeps_bars`: BARs stay where firmware put them. `None`
    /// without configuration space for bus 0, or without a window of 32-bit memory for BARs that are moved.
    pub fn new(
        node: FdtNode<'static>,
        smmu: Option<&FdtNode<'static>>,
        its: Option<&FdtNode<'static>>,
        keeps_bars: bool,
    ) -> Option<HostBridge> {
        /// Space code in the first cell of an address: 32-bit memory, and 64-bit memory.
        const SPACES: [u32; 2] = [0b10, 0b11];
        let ecam = spans::<1>(node).pop().filter(|ecam| ecam.end - ecam.start >= BUS_SIZE)?;
        let range = cells(&node, "bus-range");
        if range.first().is_some_and(|&first| first != 0) {
            return None;
        }
        let last = range.get(1).map_or(MOST_BUSES - 1, |&last| last.into());
        let buses = ((ecam.end - ecam.start) / BUS_SIZE).min(last + 1).min(MOST_BUSES) as u16;
        let spaces = if keeps_bars { &SPACES[..] } else { &SPACES[..1] };
        let ranges = cells(&node, "ranges");
        let window = |range: &[u32]| {
            let long = |at: usize| u64::from(range[at]) << 32 | u64::from(range[at + 1]);
            Window::new(long(1), long(3), long(5)).filter(|_| spaces.contains(&(range[0] >> 24 & 3)))
        };
        let windows: Vec<Window, MOST_WINDOWS> = ranges.chunks_exact(7).filter_map(window).take(MOST_WINDOWS).collect();
        if windows.is_empty() && !keeps_bars {
            return None;
        }
        let is_coherent = node.property("dma-coherent").is_some();
        let (streams, devices) = (PciMap::read(&node, "iommu-map", smmu), PciMap::read(&node, "msi-map", its));
        Some(HostBridge { ecam, buses, windows, keeps_bars, is_coherent, streams, devices })
    }

    /// Windows of memory, for the log: addresses of CPUs.
    pub fn memory(&self) -> impl Iterator<Item = Span> {
        self.windows.iter().map(|window| window.cpu..window.cpu + (window.pci.end - window.pci.start))
    }

    /// Whether firmware reports no windows. Only with BARs that stay where it put them.
    pub fn is_memory_unknown(&self) -> bool {
        self.windows.is_empty()
    }

    /// The first window: of 32-bit memory, if BARs are moved.
    pub fn window(&self) -> Span {
        self.memory().next().unwrap_or(0..0)
    }

    /// Checks that bus 0's configuration space answers, and that no bus's overlaps the board's `ram`.
    ///
    /// # Errors
    /// Configuration space is not at the address that firmware's tables give.
    pub fn check(&self, ram: &[Span]) -> Result<(), &'static str> {
        probe::claim("PCI host bridge's configuration space", &self.space(), ram, BUS_SIZE, 0).map(|_| ())
    }

    /// Configuration space of all buses.
    fn space(&self) -> Span {
        self.ecam.start..self.ecam.start + u64::from(self.buses) * BUS_SIZE
    }

    /// Configuration space of a function on one of the buses, after [`Self::check`].
    pub fn config(&self, function: Address) -> Config {
        Config(Mmio::new(address_space::device(self.space())).at(function.ecam_offset() as usize))
    }

    /// PCI address of a CPU address in the first window.
    pub fn to_pci(&self, address: u64) -> u64 {
        self.windows.first().map_or(0, |window| window.pci.start + (address - window.cpu))
    }

    /// Address by which CPUs access `size` bytes at a PCI address, if a window has all of them. Without windows it is the PCI address, and
    /// [`Config::answers_at`] has to tell whether it is right.
    pub fn to_cpu(&self, address: u64, size: u64) -> Option<u64> {
        if self.is_memory_unknown() {
            return Some(address);
        }
        self.windows.iter().find_map(|window| window.to_cpu(address, size))
    }

    /// StreamID of a function's DMA.
    pub fn stream(&self, function: Address) -> Option<u32> {
        self.streams.get(function.routing_id())
    }

    /// DeviceID of a function's messages.
    pub fn device(&self, function: Address) -> Option<u32> {
        self.devices.get(function.routing_id())
    }

    /// Turns off decoding and bus mastering of all functions. Other root buses than bus 0 may be behind another SMMU, or none. The function with
    /// the addresses `screen`, which may be empty, keeps decoding memory.
    pub fn silence(&self, screen: &Span) {
        self.configs().chain(self.others()).for_each(|mut config| stile_pci::silence(&mut config, screen));
    }

    /// Adds the pages of BARs of functions that decode memory after [`Self::silence`]: host bridges, and those that a screen needs.
    ///
    /// # Errors
    /// There are too many.
    pub fn reserve_decoded<const MOST: usize>(&self, kept: &mut Kept<MOST>) -> Result<(), Immovable> {
        self.configs().chain(self.others()).try_for_each(|config| kept.reserve_decoded(&config, |address, size| self.to_cpu(address, size)))
    }

    /// Turns off bus mastering of all functions on bus 0.
    pub fn stop_masters(&self) {
        self.configs().for_each(|mut config| stile_pci::stop_master(&mut config));
    }

    /// Configuration spaces of bus 0, also of functions that are not there.
    fn configs(&self) -> impl Iterator<Item = Config> {
        (0..=u8::MAX).map(|id| self.config(Address::from_routing_id(id.into())))
    }

    /// Configuration spaces of functions on other buses. Some bridges abort reads of those without a device.
    fn others(&self) -> impl Iterator<Item = Config> {
        let header = |address| {
            let config = self.config(address);
            let id = probe::read(&config.0, Probed { at: ID.into(), wide: true })?;
            (id & 0xffff != 0xffff).then(|| config.read(HEADER))
        };
        stile_pci::functions(1..self.buses, header).map(|address| self.config(address))
    }
}

/// Configuration space of a function.
#[derive(Clone, Copy)]
pub struct Config(Mmio);

impl Config {
    /// Whether CPUs access BAR `index` of the function at an address. Only before guests run.
    pub fn answers_at(&mut self, index: usize, bar: Bar, address: u64) -> bool {
        stile_pci::answers_at(self, index, bar, address, |page| {
            let registers = Mmio::new(address_space::device(page..page + PAGE));
            probe::read(&registers, Probed { at: 0, wide: true }).is_some_and(|value| value != u32::MAX)
        })
    }
}

impl ConfigSpace for Config {
    fn read(&self, register: u8) -> u32 {
        self.0.read32(register.into())
    }

    fn write(&mut self, register: u8, value: u32) {
        self.0.write32(register.into(), value);
    }
}
