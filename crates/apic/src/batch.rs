//! Messages that the I/O APIC sends together.

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
        let joins =
            delivery == Delivery::Fixed && self.message == Message { destination: self.message.destination, delivery, vector, level };
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

    /// The pins, as a mask, whose messages address a processor.
    pub fn pins_to(&self, is_target: impl Fn(Destination) -> bool) -> u32 {
        let mut pins = 0;
        let mut left = self.pins;
        while left != 0 {
            let pin = left.trailing_zeros();
            left &= left - 1;
            if is_target(self.destinations[pin as usize]) {
                pins |= 1 << pin;
            }
        }
        pins
    }
}
