//! Commands ("The ITS command interface").

use stile_board::intid::{LPI_BASE, LPI_COUNT};

use super::{Backing, COLLECTIONS, EVENT_BITS, Event, GuestIts, NOBODY, UNMAPPED, WORK_AT_ONCE, device_id};
use crate::Command;

/// Cost of a command that concerns all LPIs of a function.
const MANY: u32 = WORK_AT_ONCE;

mod code {
    pub const MOVI: u8 = 0x01;
    pub const INT: u8 = 0x03;
    pub const CLEAR: u8 = 0x04;
    pub const MAPD: u8 = 0x08;
    pub const MAPC: u8 = 0x09;
    pub const MAPTI: u8 = 0x0a;
    pub const INV: u8 = 0x0c;
    pub const INVALL: u8 = 0x0d;
    pub const MOVALL: u8 = 0x0e;
    pub const DISCARD: u8 = 0x0f;
}

/// Operands of a command, where it has them.
struct Operands<'c>(&'c Command);

impl Operands<'_> {
    fn device(&self) -> u32 {
        (self.0[0] >> 32) as u32
    }

    fn event(&self) -> u32 {
        self.0[1] as u32
    }

    fn lpi(&self) -> u32 {
        (self.0[1] >> 32) as u32
    }

    /// MAPD: bits of the device's EventIDs.
    fn event_bits(&self) -> u8 {
        (self.0[1] & 0x1f) as u8 + 1
    }

    fn collection(&self) -> usize {
        (self.0[2] & 0xffff) as usize
    }

    fn is_valid(&self) -> bool {
        self.0[2] >> 63 != 0
    }

    /// RDbase in word `word`: a processor number, as GITS_TYPER.PTA is 0.
    fn processor(&self, word: usize) -> u64 {
        self.0[word] >> 16 & 0xf_ffff_ffff
    }
}

impl GuestIts {
    /// Executes a command, or the part of it whose turn it is. Returns the cost. Skips a command with an error.
    pub(super) fn execute(&mut self, command: &Command, backing: &mut impl Backing) -> u32 {
        let operands = Operands(command);
        // `None`: skipped.
        let cost = match command[0] as u8 {
            code::MAPD => self.map_device(&operands, backing),
            code::MAPC => self.map_collection(&operands, backing),
            code::MAPTI => self.map_event(&operands, backing),
            code::MOVI => self.move_event(&operands, backing),
            code::DISCARD => self.discard(&operands, backing),
            code::INV => self.mapped_event(&operands).map(|(_, _, event)| {
                self.configure(event.lpi, backing);
                1
            }),
            code::INT => self.mapped_event(&operands).map(|(_, _, event)| {
                backing.set_pending(event.lpi.into());
                1
            }),
            code::CLEAR => self.mapped_event(&operands).map(|(_, _, event)| {
                backing.clear_pending(event.lpi.into());
                1
            }),
            code::INVALL => {
                self.each_of_next(|_, of| of == operands.collection(), |its, event| its.configure(event.lpi, backing));
                Some(MANY)
            }
            code::MOVALL => self.move_all(&operands, backing),
            _ => None,
        };
        // The guest may have changed a command that was executed in part.
        if cost.is_none() || !matches!(command[0] as u8, code::MAPC | code::INVALL | code::MOVALL) {
            self.next = 0;
        }
        cost.unwrap_or(1)
    }

    /// The function that a DeviceID names.
    fn function(&self, operands: &Operands<'_>) -> Option<usize> {
        (0..self.functions).find(|&function| device_id(function) == operands.device())
    }

    /// The function and number of an event that its device has.
    fn event(&self, operands: &Operands<'_>) -> Option<(usize, usize)> {
        let function = self.function(operands)?;
        (operands.event() < self.devices[function].into()).then_some((function, operands.event() as usize))
    }

    /// An event that is mapped.
    fn mapped_event(&self, operands: &Operands<'_>) -> Option<(usize, usize, Event)> {
        let (function, number) = self.event(operands)?;
        let event = self.events[function][number];
        (event.lpi != 0).then_some((function, number, event))
    }

    fn vcpu(&self, processor: u64) -> Option<usize> {
        usize::try_from(processor).ok().filter(|&vcpu| vcpu < self.vcpus)
    }

    fn map_device(&mut self, operands: &Operands<'_>, backing: &mut impl Backing) -> Option<u32> {
        let function = self.function(operands)?;
        let bits = operands.event_bits();
        if operands.is_valid() && bits > EVENT_BITS {
            return None;
        }
        // A device that is mapped again has a new table of events.
        for number in 0..self.events[function].len() {
            self.unmap(function, number, backing);
        }
        self.devices[function] = if operands.is_valid() { 1 << bits } else { 0 };
        Some(MANY)
    }

    fn map_collection(&mut self, operands: &Operands<'_>, backing: &mut impl Backing) -> Option<u32> {
        let collection = operands.collection();
        let vcpu = if operands.is_valid() { self.vcpu(operands.processor(2))? as u16 } else { NOBODY };
        *self.collections.get_mut(collection)? = vcpu;
        self.each_of_next(|_, of| of == collection, |its, event| backing.route(event.lpi.into(), its.target(collection)));
        Some(MANY)
    }

    fn map_event(&mut self, operands: &Operands<'_>, backing: &mut impl Backing) -> Option<u32> {
        let (function, number) = self.event(operands)?;
        let (lpi, collection) = (operands.lpi(), operands.collection());
        if !(LPI_BASE..LPI_BASE + LPI_COUNT).contains(&lpi) || collection >= COLLECTIONS {
            return None;
        }
        self.unmap(function, number, backing);
        let event = Event { lpi: lpi as u16, collection: collection as u16 };
        self.events[function][number] = event;
        // Its configuration first: it may be that of another event's LPI.
        self.configure(event.lpi, backing);
        backing.route(lpi, self.target(collection));
        if self.enabled {
            backing.translate(function, number, Some(lpi));
        }
        Some(1)
    }

    fn move_event(&mut self, operands: &Operands<'_>, backing: &mut impl Backing) -> Option<u32> {
        let (function, number, event) = self.mapped_event(operands)?;
        let collection = operands.collection();
        self.vcpu_of(collection)?;
        self.events[function][number].collection = collection as u16;
        backing.route(event.lpi.into(), self.target(collection));
        Some(1)
    }

    fn discard(&mut self, operands: &Operands<'_>, backing: &mut impl Backing) -> Option<u32> {
        let (function, number, _) = self.mapped_event(operands)?;
        self.unmap(function, number, backing);
        Some(1)
    }

    fn unmap(&mut self, function: usize, number: usize, backing: &mut impl Backing) {
        let event = core::mem::replace(&mut self.events[function][number], UNMAPPED);
        if event.lpi != 0 {
            backing.translate(function, number, None);
            backing.route(event.lpi.into(), None);
        }
    }

    fn move_all(&mut self, operands: &Operands<'_>, backing: &mut impl Backing) -> Option<u32> {
        let (from, to) = (self.vcpu(operands.processor(2))?, self.vcpu(operands.processor(3))?);
        let to = Some(to).filter(|&to| self.takes_lpis(to));
        self.each_of_next(|its, of| its.vcpu_of(of) == Some(from), |_, event| backing.route(event.lpi.into(), to));
        Some(MANY)
    }
}
