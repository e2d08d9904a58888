//! DMA and messages of a function: its entry in the IOMMU's tables, and a host vector for each of its own.

use core::ops::Range;

use stile_board::pc;
use stile_pci::{Address, Vector};

use super::remapping::Messages;
use super::{faults, messages};
use crate::arch::contract::{Directed, FunctionPart};
use crate::arch::x86_64::host::mmio::Mmio;
use crate::arch::x86_64::host::pcie::Config;
use crate::arena::Arena;
use crate::assigned::failure;

/// DMA and messages of a function.
pub struct Part {
    /// Its remapping table.
    pub messages: &'static Messages,
    /// Number of the host vector of its first vector.
    first: usize,
}

impl Part {
    /// Gives the function of VM `vm` host vectors from `first` on.
    ///
    /// # Errors
    /// A description of why it cannot be assigned.
    pub fn new(vm: usize, address: Address, first: usize, vectors: usize, arena: &'static Arena) -> Result<Part, &'static str> {
        let remapping = arena.allocate()?.write(Messages::new(address, arena)?);
        messages::assign(vm, remapping, first, vectors)?;
        Ok(Part { messages: remapping, first })
    }
}

impl FunctionPart for Part {
    type Config = Config;

    const WINDOW: Range<u64> = pc::PCI_WINDOW;

    fn message(vector: usize) -> (u64, u32) {
        let (address, data) = stile_amd_iommu::message(vector as u8);
        (address.into(), data)
    }

    fn direct(&mut self, number: usize, vector: Option<Vector>) -> Directed {
        // The guest may have written a masked entry in part: the address of one message, the data of another. The route keeps the message
        // of the entry before, which interrupts not handled yet still send.
        if vector.is_some_and(|vector| vector.masked) {
            return Directed { arrives: false, data: None };
        }
        Directed { arrives: messages::route(self.first + number, vector), data: None }
    }

    fn reset(&mut self, vectors: usize) {
        self.disconnect(vectors);
    }

    fn disconnect(&self, vectors: usize) {
        (self.first..).take(vectors).for_each(|number| {
            messages::route(number, None);
        });
    }

    fn are_stopped() -> bool {
        failure::are_stopped()
    }

    fn is_cut_off(&self) -> bool {
        faults::is_cut_off(self.messages.function())
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
