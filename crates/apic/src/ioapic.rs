//! The I/O APIC.

use stile_snapshot::pc::IoApic as Saved;

use crate::{Batch, Delivery, Message, PINS};

/// Byte offsets in the page: "Memory Mapped Registers for Accessing IOAPIC Registers".
mod offset {
    pub const SELECT: u32 = 0x00;
    pub const WINDOW: u32 = 0x10;
    pub const EOI: u32 = 0x40;
}

/// Indexes of registers behind the window.
mod index {
    pub const ID: u8 = 0;
    pub const VERSION: u8 = 1;
    pub const ARBITRATION: u8 = 2;
    pub const REDIRECTION: u8 = 0x10;
}

/// 0x20 is the first version with an EOI register.
const VERSION: u32 = 0x20 | (PINS as u32 - 1) << 16;

const REMOTE_IRR: u64 = 1 << 14;
const LEVEL: u64 = 1 << 15;
const MASKED: u64 = 1 << 16;
/// The writable bits of an entry: all but delivery status and remote IRR.
const WRITABLE: u64 = 0xff00_0000_0001_afff;
/// Bits 8 to 14 of a destination: writable if destinations are extended.
const EXTENDED: u64 = 0x7f << 49;

/// An I/O APIC of 24 pins.
/// After each operation that may generate messages, the caller sends them by calling
/// [`next_batch`](Self::next_batch) until it returns `None`, at most [`PINS`] times. Polarity is ignored: lines are
/// asserted or not.
#[derive(Clone, Debug)]
pub struct IoApic {
    /// The writable bits of an entry.
    writable: u64,
    select: u8,
    id: u8,
    entries: [u64; PINS],
    /// Asserted lines.
    lines: u32,
    /// Edges not yet sent.
    edges: u32,
    /// Pins that may have a message to send, as their state has changed.
    due: u32,
    /// Number of the last batch.
    batches: u32,
    /// Number of the last batch with each pin's message.
    sent: [u32; PINS],
}

impl Default for IoApic {
    fn default() -> Self {
        Self::new()
    }
}

impl IoApic {
    /// The reset state: all entries masked.
    pub const fn new() -> Self {
        Self { writable: WRITABLE, select: 0, id: 0, entries: [MASKED; PINS], lines: 0, edges: 0, due: 0, batches: 0, sent: [0; PINS] }
    }

    /// Extends physical destinations to 15 bits, as hypervisors do without a unit that remaps interrupts ("Extended Destination
    /// ID"; CPUID feature 15 of KVM's interface).
    #[must_use]
    pub const fn with_extended_destinations(mut self) -> Self {
        self.writable |= EXTENDED;
        self
    }

    /// Returns to the reset state.
    pub const fn reset(&mut self) {
        *self = Self { writable: self.writable, ..Self::new() };
    }

    /// Emulates a 32-bit read at `offset` in the page.
    pub const fn read(&self, offset: u32) -> u32 {
        match offset {
            offset::SELECT => self.select as u32,
            offset::WINDOW => self.register(),
            _ => 0,
        }
    }

    /// Emulates a 32-bit write at `offset` in the page.
    pub fn write(&mut self, offset: u32, value: u32) {
        match offset {
            offset::SELECT => self.select = value as u8,
            offset::WINDOW => self.set_register(value),
            offset::EOI => self.end(value as u8),
            _ => {}
        }
    }

    /// Asserts or deasserts a line. Nonexistent pins are ignored.
    pub fn set_line(&mut self, pin: usize, asserted: bool) {
        let Some(entry) = self.entries.get(pin) else { return };
        let bit = 1 << pin;
        let rises = asserted && self.lines & bit == 0;
        self.lines = if asserted { self.lines | bit } else { self.lines & !bit };
        // An edge on a masked pin is ignored.
        if rises && entry & MASKED == 0 && !is_level(*entry) {
            self.edges |= bit;
        }
        self.due |= bit;
    }

    /// Ends the level-triggered interrupt of this vector, broadcast by a local APIC or written by the guest.
    pub fn end(&mut self, vector: u8) {
        for (pin, entry) in self.entries.iter_mut().enumerate() {
            if *entry as u8 == vector && is_level(*entry) {
                *entry &= !REMOTE_IRR;
                self.due |= 1 << pin;
            }
        }
    }

    /// Whether an entry is configured for NMI or INIT, which a processor accepts even with interrupts
    /// disabled.
    pub fn has_signals(&self) -> bool {
        let delivery = |entry: &u64| Message::from_redirection(*entry).map(|message| message.delivery);
        let is_signal = |entry: &u64| entry & MASKED == 0 && matches!(delivery(entry), Some(Delivery::Nmi | Delivery::Init));
        self.entries.iter().any(is_signal)
    }

    /// The next messages to send, with those that may be sent together. At most one per pin until its state changes.
    pub fn next_batch(&mut self) -> Option<Batch> {
        let mut batch: Option<Batch> = None;
        let mut due = self.due;
        while due != 0 {
            let pin = due.trailing_zeros() as usize;
            due &= due - 1;
            let message = self.message(pin);
            if let Some(message) = message {
                let joins = match &mut batch {
                    Some(batch) => batch.add(pin, message),
                    None => {
                        self.batches = self.batches.wrapping_add(1);
                        batch = Some(Batch::new(self.batches, pin, message));
                        true
                    }
                };
                if !joins {
                    continue;
                }
                self.sent[pin] = self.batches;
                self.entries[pin] |= if is_level(self.entries[pin]) { REMOTE_IRR } else { 0 };
            }
            self.edges &= !(1 << pin);
            self.due &= !(1 << pin);
        }
        batch
    }

    /// The message that a pin has to send.
    fn message(&self, pin: usize) -> Option<Message> {
        let (entry, bit) = (self.entries[pin], 1 << pin);
        let sends = if is_level(entry) { entry & (MASKED | REMOTE_IRR) == 0 && self.lines & bit != 0 } else { self.edges & bit != 0 };
        if sends { Message::from_redirection(entry) } else { None }
    }

    /// Clears remote IRR of level-triggered pins (a mask) whose message in this batch no local APIC has accepted ("Remote IRR"). They
    /// send again once their state changes. A pin that has sent again meanwhile keeps the outcome of that message.
    pub fn refused(&mut self, batch: &Batch, pins: u32) {
        for (pin, entry) in self.entries.iter_mut().enumerate() {
            if pins >> pin & 1 != 0 && self.sent[pin] == batch.number && is_level(*entry) {
                *entry &= !REMOTE_IRR;
            }
        }
    }

    /// Exports the state.
    pub const fn save(&self) -> Saved {
        let Self { select, id, entries, lines, edges, .. } = *self;
        Saved { select, id, entries, lines, edges }
    }

    /// Imports a state, reduced to one that a guest could have produced.
    pub fn restore(&mut self, from: &Saved) {
        let exist = (1 << PINS) - 1;
        let mut entries = from.entries;
        let mut sensitive = 0;
        for (pin, entry) in entries.iter_mut().enumerate() {
            *entry &= self.writable | if is_level(*entry) { REMOTE_IRR } else { 0 };
            sensitive |= u32::from(*entry & MASKED == 0 && !is_level(*entry)) << pin;
        }
        let (lines, edges) = (from.lines & exist, from.edges & sensitive);
        self.reset();
        *self = Self { select: from.select, id: from.id & 0xf, entries, lines, edges, due: exist, ..self.clone() };
    }

    const fn register(&self) -> u32 {
        match self.select {
            index::ID | index::ARBITRATION => (self.id as u32) << 24,
            index::VERSION => VERSION,
            select => match self.selected(select) {
                Some(pin) if select & 1 != 0 => (self.entries[pin] >> 32) as u32,
                Some(pin) => self.entries[pin] as u32,
                None => 0,
            },
        }
    }

    fn set_register(&mut self, value: u32) {
        if self.select == index::ID {
            self.id = (value >> 24) as u8 & 0xf;
        }
        let Some(pin) = self.selected(self.select) else { return };
        let old = self.entries[pin];
        let value = u64::from(value);
        let new = if self.select & 1 != 0 { old & 0xffff_ffff | value << 32 } else { old & !0xffff_ffff | value };
        let mut entry = old & !self.writable | new & self.writable;
        if !is_level(entry) {
            entry &= !REMOTE_IRR;
        }
        if entry & MASKED != 0 || is_level(entry) {
            self.edges &= !(1 << pin);
        }
        self.entries[pin] = entry;
        self.due |= 1 << pin;
    }

    /// The pin whose entry the window selects.
    const fn selected(&self, select: u8) -> Option<usize> {
        let Some(half) = select.checked_sub(index::REDIRECTION) else { return None };
        let pin = (half / 2) as usize;
        if pin < PINS { Some(pin) } else { None }
    }
}

/// Whether an entry is level-triggered. SMI, NMI, INIT and ExtINT are edge-triggered even if programmed otherwise
/// ("I/O Redirection Table Registers", "Delivery Mode").
const fn is_level(entry: u64) -> bool {
    const FIXED_OR_LOWEST: u64 = 0b110 << 8;
    entry & LEVEL != 0 && entry & FIXED_OR_LOWEST == 0
}
