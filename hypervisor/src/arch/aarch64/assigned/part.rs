//! DMA and messages of a function: its stream, and an LPI for each vector.

use core::ops::Range;

use stile_board::map;
use stile_its::guest::EVENTS;
use stile_pci::Vector;

use super::interrupts;
use crate::arch::Cpu;
use crate::arch::aarch64::host::its;
use crate::arch::aarch64::host::mmio::Mmio;
use crate::arch::aarch64::host::pcie::Config;
use crate::arch::contract::{Directed, FunctionPart, PhysicalCpu};
use crate::assigned::failure;

/// DMA and messages of a function.
pub struct Part {
    /// StreamID of its DMA.
    pub stream: u32,
    /// DeviceID of its messages.
    pub device: u32,
    /// The physical LPI of its first vector.
    first_lpi: u32,
    /// The physical ITS has the guest's events, instead of one for each vector (GICv4).
    injected: bool,
    /// The VM's LPI of each event that the VM's ITS translates, or 0.
    events: [u16; EVENTS],
}

impl Part {
    /// A function with this StreamID and DeviceID. Assigns LPIs from `first_lpi` on to its messages, if they are not `injected`.
    ///
    /// # Errors
    /// A description of why it cannot be assigned.
    pub fn new(stream: u32, (device, first_lpi, injected): (u32, u32, bool), vectors: usize) -> Result<Part, &'static str> {
        its::map(device, (!injected).then_some(first_lpi), vectors as u32, Cpu::this_index())?;
        Ok(Part { stream, device, first_lpi, injected, events: [0; EVENTS] })
    }

    /// Sets the VM's LPI to which its ITS translates an event, or none.
    pub fn translate(&mut self, event: usize, lpi: Option<u32>) {
        self.events[event % EVENTS] = lpi.unwrap_or(0) as u16;
    }
}

impl FunctionPart for Part {
    type Config = Config;

    const WINDOW: Range<u64> = map::PCI_WINDOW_BASE..map::PCI_WINDOW_BASE + map::PCI_WINDOW_SIZE;

    /// The data is the EventID.
    fn message(vector: usize) -> (u64, u32) {
        (map::ITS_TRANSLATER, vector as u32)
    }

    /// Routes the physical LPI to the VM's.
    fn direct(&mut self, number: usize, vector: Option<Vector>) -> Directed {
        let event = vector.filter(|vector| vector.address == map::ITS_TRANSLATER).and_then(|vector| usize::try_from(vector.data).ok());
        let lpi = event.and_then(|event| self.events.get(event)).copied().unwrap_or(0);
        let data = match event.filter(|_| self.injected) {
            // Translated: less than the number of events.
            Some(event) => Some(if lpi == 0 { 0 } else { event as u32 }),
            None => {
                interrupts::route(self.first_lpi + number as u32, lpi);
                None
            }
        };
        Directed { arrives: lpi != 0, data }
    }

    fn reset(&mut self, vectors: usize) {
        self.events = [0; EVENTS];
        self.disconnect(vectors);
    }

    fn disconnect(&self, vectors: usize) {
        (self.first_lpi..).take(vectors).for_each(|lpi| {
            interrupts::route(lpi, 0);
        });
    }

    fn are_stopped() -> bool {
        failure::are_stopped()
    }

    /// A stream that aborts causes no events: bus mastering may stay on.
    fn is_cut_off(&self) -> bool {
        false
    }

    fn read32(register: usize) -> u32 {
        Mmio::new(register).read32(0)
    }

    fn write32(register: usize, value: u32) {
        Mmio::new(register).write32(0, value);
    }

    fn write(register: usize, bytes: u64, value: u64) {
        Mmio::new(register).write(0, bytes, value);
    }
}
