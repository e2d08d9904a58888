//! Messages that the I/O APIC sends together.

use crate::address::{Acceptors, Address, Destinations};
use crate::{Delivery, Destination, Message};

/// Number of interrupt inputs.
pub const PINS: usize = 24;

/// Messages of several pins that have the same effect on a processor that several of them address: a processor accepts
/// all of them at once. The time to send all messages of an I/O APIC is that for one to each processor.
#[derive(Clone, Debug)]
pub struct Batch {
    message: Message,
    destinations: [Destination; PINS],
    pins: u32,
    /// Number of the batch, which wraps.
    pub(crate) number: u32,
}

impl Batch {
    pub(crate) const fn new(number: u32, pin: usize, message: Message) -> Self {
        Self { message, destinations: [message.destination; PINS], pins: 1 << pin, number }
    }

    /// Adds a pin's message. Returns false, without effect, if its effect differs.
    pub(crate) fn add(&mut self, pin: usize, message: Message) -> bool {
        let Message { destination, delivery, vector, level } = message;
        let has_vector = matches!(delivery, Delivery::Fixed | Delivery::LowestPriority);
        let joins = has_vector && self.message == Message { destination: self.message.destination, delivery, vector, level };
        if joins {
            self.destinations[pin] = destination;
            self.pins |= 1 << pin;
        }
        joins
    }

    /// The message of the first pin; those of the others differ in their destinations.
    pub const fn message(&self) -> Message {
        self.message
    }

    /// The pins, as a mask.
    pub const fn pins(&self) -> u32 {
        self.pins
    }

    /// The pins of the batch, with the destinations of their messages.
    pub fn each(&self) -> impl Iterator<Item = (usize, Destination)> {
        self.destinations.iter().copied().enumerate().filter(|(pin, _)| self.pins >> pin & 1 != 0)
    }

    /// Returns a test of whether any message addresses an APIC. No message has a shorthand or a destination of 32 bits.
    pub fn addresses(&self) -> impl Fn(Address) -> bool {
        let mut destinations = Destinations::default();
        self.each().for_each(|(_, destination)| destinations.add(destination));
        move |address| destinations.contain(address)
    }

    /// The pins, as a mask, whose messages address one of these APICs.
    pub fn pins_to(&self, acceptors: &Acceptors) -> u32 {
        self.each().filter(|(_, destination)| acceptors.include(*destination)).fold(0, |pins, (pin, _)| pins | 1 << pin)
    }
}
