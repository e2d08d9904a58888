//! The PC's PCI configuration space in memory, which firmware's MCFG names. Bus 0 of segment 0 only: bridges are not crossed.

use stile_pci::{Address, ConfigSpace};

use super::board;
use super::mmio::Mmio;
use crate::address_space::{self, Span};

/// Size of a bus's configuration space.
const BUS_SIZE: u64 = 1 << 20;

/// The bus.
#[derive(Clone, Copy)]
pub struct HostBridge {
    /// Physical address of its configuration space.
    ecam: u64,
}

/// Returns the bus, if firmware names its configuration space, and has not placed it in memory.
pub fn bridge() -> Option<HostBridge> {
    let board = board::get();
    let ecam = board.tables.configuration_spaces.iter().filter(|space| space.segment == 0).find_map(|space| space.bus(0))?;
    board.is_device(&(ecam..ecam + BUS_SIZE)).then_some(HostBridge { ecam })
}

impl HostBridge {
    /// Configuration space of a function on bus 0.
    pub fn config(&self, function: Address) -> Config {
        let bus: Span = self.ecam..self.ecam + BUS_SIZE;
        Config(Mmio::new(address_space::device(bus)).at((function.ecam_offset() & (BUS_SIZE - 1)) as usize))
    }

    /// Turns off decoding and bus mastering of all functions on bus 0, and thereby of those behind bridges. IOMMUs keep working, and the screen
    /// stays visible.
    pub fn silence(&self) {
        let screen = board::get().frame_buffer.as_ref().map_or(0..0, |buffer| buffer.address..buffer.address + buffer.len());
        self.configs().for_each(|mut config| stile_pci::silence(&mut config, &screen));
    }

    /// Turns off bus mastering of all functions on bus 0, except for IOMMUs.
    pub fn stop_masters(&self) {
        self.configs().for_each(|mut config| stile_pci::stop_master(&mut config));
    }

    /// Configuration spaces of bus 0, also of functions that are not there, but not of IOMMUs.
    fn configs(&self) -> impl Iterator<Item = Config> {
        let iommus = &board::get().tables.ivrs.iommus;
        let ids = (0..=u8::MAX).map(u16::from).filter(move |&id| iommus.iter().all(|iommu| iommu.id != id));
        ids.map(|id| self.config(Address::from_routing_id(id)))
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
