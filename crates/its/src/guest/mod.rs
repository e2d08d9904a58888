//! The ITS that a VM sees, and the part of its redistributors that concerns LPIs.
//!
//! It needs no tables in the guest's memory: it has no GITS_BASER, holds all collections (GITS_TYPER.HCC), and translates
//! for the VM's functions only, [`EVENTS`] events each. Of the guest's memory it reads the command queue, and bytes of the
//! LPI configuration table when a command asks for them; both may have any address and any contents.
//!
//! - A command that names what does not exist, or is out of range, is skipped, as is an unknown one. A queue outside of
//!   RAM stalls (GITS_CREADR.Stalled) until the guest writes GITS_CWRITER with Retry.
//! - [`GuestIts::run`] executes commands of limited [cost](WORK_AT_ONCE), and the caller calls it again.
//! - Commands are complete when GITS_CREADR passes them: SYNC does nothing.
//! - MAPC takes pending LPIs of the collection to its new vCPU, as MOVALL would; after MOVALL the LPIs stay with their new
//!   vCPU until the collection or the event moves.
//! - MAPI is always out of range: an EventID is below the first LPI.
//! - An LPI has one route. If a guest maps two events to it, which is UNPREDICTABLE, it follows the last command.

mod commands;
mod registers;

pub use registers::Written;

use stile_board::{MAX_FUNCTIONS, MAX_VCPUS};

use crate::Command;

/// Number of events of a function: a vector sends one.
pub const EVENTS: usize = 32;
/// Bits of an EventID.
const EVENT_BITS: u8 = EVENTS.ilog2() as u8;
/// Bits of a DeviceID: the routing ID of a function on the VM's bus.
const DEVICE_BITS: u8 = 7;
const _: () = assert!(device_id(MAX_FUNCTIONS - 1) < 1 << DEVICE_BITS);

/// Attributes that GICR_PROPBASER and GICR_PENDBASER read back: inner write-back, Inner Shareable.
const TABLE_ATTRIBUTES: u64 = 0b111 << 7 | 0b01 << 10;

/// Number of collections: one more than vCPUs.
const COLLECTIONS: usize = MAX_VCPUS + 1;

/// Number of commands that one call of [`GuestIts::run`] executes at most. Of those that concern many LPIs, it executes the part
/// for one function.
pub const WORK_AT_ONCE: u32 = 16;

/// DeviceID of a VM's function: functions are function 0 of devices 1 and up.
pub const fn device_id(function: usize) -> u32 {
    (function as u32 + 1) << 3
}

/// The guest's memory and GIC, and the translation of its functions' messages, as an ITS accesses them.
pub trait Backing {
    /// Reads a command at a guest-physical address. `None` if it is not in RAM.
    fn command(&self, gpa: u64) -> Option<Command>;

    /// Reads a byte of the LPI configuration table. `None` if it is not in RAM.
    fn configuration(&self, gpa: u64) -> Option<u8>;

    /// Routes an LPI to a vCPU, or to none, where it ceases to be pending.
    fn route(&mut self, lpi: u32, vcpu: Option<usize>);

    /// Configures an LPI by its byte of the configuration table.
    fn configure(&mut self, lpi: u32, configuration: u8);

    /// Makes an LPI pending, if it is routed to a vCPU.
    fn set_pending(&mut self, lpi: u32);

    /// Makes an LPI not pending.
    fn clear_pending(&mut self, lpi: u32);

    /// Translates an event of a function to an LPI, or to nothing.
    fn translate(&mut self, function: usize, event: usize, lpi: Option<u32>);
}

/// An event that may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    /// Its LPI, or 0.
    lpi: u16,
    collection: u16,
}

const UNMAPPED: Event = Event { lpi: 0, collection: 0 };

/// A collection that is mapped to no vCPU.
const NOBODY: u16 = u16::MAX;

/// The state of a VM's ITS and of its redistributors' LPI registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestIts {
    functions: usize,
    vcpus: usize,
    /// GITS_CTLR.Enabled.
    enabled: bool,
    /// Number of functions whose messages are still to be translated, or not, because Enabled has changed.
    untranslated: u8,
    base: u64,
    /// Offsets in the queue.
    writer: u64,
    reader: u64,
    stalled: bool,
    /// The command at `reader` has been executed for functions below this one.
    next: usize,
    /// Number of events of each function that is mapped, or 0.
    devices: [u8; MAX_FUNCTIONS],
    events: [[Event; EVENTS]; MAX_FUNCTIONS],
    /// The vCPU of each collection.
    collections: [u16; COLLECTIONS],
    /// GICR_PROPBASER, of all redistributors.
    configuration: u64,
    /// GICR_PENDBASER of each redistributor; its bit 0, which is reserved, is GICR_CTLR.EnableLPIs.
    pending: [u64; MAX_VCPUS],
    /// Number of functions whose LPIs the redistributor has to route still, because it has enabled or disabled LPIs.
    unrouted: [u8; MAX_VCPUS],
}

impl GuestIts {
    /// The reset state for a VM with these numbers of functions and vCPUs.
    pub fn new(functions: usize, vcpus: usize) -> Self {
        Self {
            functions: functions.min(MAX_FUNCTIONS),
            vcpus: vcpus.min(MAX_VCPUS),
            enabled: false,
            untranslated: 0,
            base: 0,
            writer: 0,
            reader: 0,
            stalled: false,
            next: 0,
            devices: [0; MAX_FUNCTIONS],
            events: [[UNMAPPED; EVENTS]; MAX_FUNCTIONS],
            collections: [NOBODY; COLLECTIONS],
            configuration: TABLE_ATTRIBUTES,
            pending: [TABLE_ATTRIBUTES; MAX_VCPUS],
            unrouted: [0; MAX_VCPUS],
        }
    }

    /// Resets it. The GIC and the functions' translations are reset with it.
    pub fn reset(&mut self) {
        *self = Self::new(self.functions, self.vcpus);
    }

    /// Applies a change of GITS_CTLR.Enabled to one function, or executes commands, of limited cost. Returns whether there is more.
    pub fn run(&mut self, backing: &mut impl Backing) -> bool {
        if self.translate_next(backing) {
            return self.untranslated != 0 || self.is_busy();
        }
        let mut work = 0;
        while self.is_busy() {
            if work >= WORK_AT_ONCE {
                return true;
            }
            let Some(command) = backing.command(self.queue() + self.reader) else {
                self.stalled = true;
                return false;
            };
            work += self.execute(&command, backing);
            if self.next == 0 {
                self.reader = (self.reader + crate::COMMAND_SIZE as u64) % self.queue_size();
            }
        }
        false
    }

    /// The mapped events of a function whose collection satisfies `of`.
    fn events_of(&self, function: usize, of: impl Fn(usize) -> bool) -> impl Iterator<Item = Event> {
        let events = self.events.get(function).into_iter().flatten();
        events.copied().filter(move |event| event.lpi != 0 && of(event.collection.into()))
    }

    /// The events of the function whose turn it is, for a command that concerns all functions: [`GuestIts::run`] executes it
    /// again for the next one.
    fn each_of_next(&mut self, of: impl Fn(&Self, usize) -> bool, mut with: impl FnMut(&Self, Event)) {
        for event in self.events_of(self.next, |collection| of(self, collection)) {
            with(self, event);
        }
        self.next = if self.next + 1 < self.functions { self.next + 1 } else { 0 };
    }

    /// The vCPU that takes LPIs of a collection: none while its redistributor has them disabled.
    fn target(&self, collection: usize) -> Option<usize> {
        self.vcpu_of(collection).filter(|&vcpu| self.takes_lpis(vcpu))
    }

    /// The vCPU that a collection is mapped to.
    fn vcpu_of(&self, collection: usize) -> Option<usize> {
        self.collections.get(collection).map(|&vcpu| usize::from(vcpu)).filter(|&vcpu| vcpu < self.vcpus)
    }

    /// Reads the configuration of an LPI and applies it.
    fn configure(&self, lpi: u16, backing: &mut impl Backing) {
        if let Some(byte) = self.configuration_address(lpi.into()).and_then(|address| backing.configuration(address)) {
            backing.configure(lpi.into(), byte);
        }
    }
}
