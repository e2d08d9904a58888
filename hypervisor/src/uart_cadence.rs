//! Cadence's UART in Xilinx's SoCs (Zynq UltraScale+ Device Technical Reference Manual, UG1085, "UART Controller"; registers: UG1087, "UART
//! Module"), under the console.
//!
//! Interrupt causes are latched: an event sets a bit of the interrupt status, which stays until it is written as 1. A cause is therefore
//! cleared only where its next event is certain to come, or where the FIFO is looked at afterwards.

use crate::uart_words::WordRegisters;

/// Control.
const CONTROL: usize = 0x00;
/// Mode.
const MODE: usize = 0x04;
const INTERRUPT_ENABLE: usize = 0x08;
const INTERRUPT_DISABLE: usize = 0x0c;
/// Interrupt status; writing 1 clears a bit.
const INTERRUPT_STATUS: usize = 0x14;
/// Time-out of the receiver; 0: none.
const RECEIVER_TIMEOUT: usize = 0x1c;
/// Number of bytes in the receive FIFO that set RECEIVED.
const RECEIVER_TRIGGER: usize = 0x20;
/// State of the channel, with the same bits as the interrupts.
pub const STATUS: usize = 0x2c;
const FIFO: usize = 0x30;

const RECEIVER_ON: u32 = 1 << 2;
const TRANSMITTER_ON: u32 = 1 << 4;
/// MODE: the clock is divided by 8, as firmware's speed may need.
const CLOCK_BY_8: u32 = 1 << 0;
const NO_PARITY: u32 = 0b100 << 3;

/// The receive FIFO has as many bytes as RECEIVER_TRIGGER says.
const RECEIVED: u32 = 1 << 0;
const RECEIVER_EMPTY: u32 = 1 << 1;
const TRANSMITTER_EMPTY: u32 = 1 << 3;
const TRANSMITTER_FULL: u32 = 1 << 4;
/// All causes of interrupts.
const ALL: u32 = 0x1fff;

/// A UART.
pub struct Cadence<R>(R);

impl<R: WordRegisters> Cadence<R> {
    /// Takes over a UART with firmware's speed: 8N1, interrupts disabled. Keeps the bytes in its FIFOs.
    pub fn new(registers: R) -> Self {
        registers.write(INTERRUPT_DISABLE, ALL);
        registers.write(MODE, registers.read(MODE) & CLOCK_BY_8 | NO_PARITY);
        registers.write(CONTROL, RECEIVER_ON | TRANSMITTER_ON);
        registers.write(RECEIVER_TIMEOUT, 0);
        registers.write(RECEIVER_TRIGGER, 1);
        Self(registers)
    }

    /// Sends a byte if the FIFO has room.
    pub fn try_send(&self, byte: u8) -> bool {
        if self.0.read(STATUS) & TRANSMITTER_FULL != 0 {
            return false;
        }
        self.0.write(FIFO, byte.into());
        true
    }

    /// Returns a received byte.
    pub fn try_receive(&self) -> Option<u8> {
        let is_empty = || self.0.read(STATUS) & RECEIVER_EMPTY != 0;
        if is_empty() {
            self.0.write(INTERRUPT_STATUS, RECEIVED);
            // A byte that came before the write has lost its interrupt.
            if is_empty() {
                return None;
            }
        }
        Some(self.0.read(FIFO) as u8)
    }

    /// Selects the next interrupts: a received byte, and an empty transmitter. That of a received byte ends when
    /// [`Self::try_receive`] finds none.
    pub fn set_interrupts(&self, receive: bool, send: bool) {
        // If the FIFO is full, it will become empty. Otherwise the latched event may be the only one: all may have been sent.
        if self.0.read(STATUS) & TRANSMITTER_FULL != 0 {
            self.0.write(INTERRUPT_STATUS, TRANSMITTER_EMPTY);
        }
        let causes = if receive { RECEIVED } else { 0 } | if send { TRANSMITTER_EMPTY } else { 0 };
        self.0.write(INTERRUPT_DISABLE, (RECEIVED | TRANSMITTER_EMPTY) & !causes);
        self.0.write(INTERRUPT_ENABLE, causes);
    }
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::vec::Vec;

    use super::*;

    const DEPTH: usize = 64;

    /// A UART whose interrupt status latches events.
    struct Model {
        mode: Cell<u32>,
        control: Cell<u32>,
        enabled: Cell<u32>,
        latched: Cell<u32>,
        to_send: Cell<usize>,
        received: RefCell<VecDeque<u8>>,
        /// Comes at the next write of the interrupt status, before it.
        late: Cell<Option<u8>>,
        sent: RefCell<Vec<u8>>,
    }

    impl Model {
        fn new() -> Self {
            Self {
                mode: Cell::new(CLOCK_BY_8 | 0x300),
                control: Cell::new(0x128),
                enabled: Cell::new(ALL),
                // It was empty at its reset.
                latched: Cell::new(TRANSMITTER_EMPTY | RECEIVER_EMPTY),
                to_send: Cell::new(0),
                received: RefCell::default(),
                late: Cell::new(None),
                sent: RefCell::default(),
            }
        }

        fn receive(&self, byte: u8) {
            self.received.borrow_mut().push_back(byte);
            self.latched.set(self.latched.get() | RECEIVED);
        }

        /// The line takes all bytes.
        fn transmit(&self) {
            self.to_send.set(0);
            self.latched.set(self.latched.get() | TRANSMITTER_EMPTY);
        }

        fn interrupts(&self) -> u32 {
            self.latched.get() & self.enabled.get()
        }
    }

    impl WordRegisters for &Model {
        fn read(&self, offset: usize) -> u32 {
            let received = &self.received;
            match offset {
                MODE => self.mode.get(),
                STATUS => {
                    let flag = |is_set, flag| if is_set { flag } else { 0 };
                    flag(received.borrow().is_empty(), RECEIVER_EMPTY)
                        | flag(self.to_send.get() == 0, TRANSMITTER_EMPTY)
                        | flag(self.to_send.get() == DEPTH, TRANSMITTER_FULL)
                }
                FIFO => received.borrow_mut().pop_front().expect("a byte was received").into(),
                _ => panic!("{offset:#x} is not read"),
            }
        }

        fn write(&self, offset: usize, value: u32) {
            match offset {
                CONTROL => self.control.set(value),
                MODE => self.mode.set(value),
                INTERRUPT_ENABLE => self.enabled.set(self.enabled.get() | value),
                INTERRUPT_DISABLE => self.enabled.set(self.enabled.get() & !value),
                INTERRUPT_STATUS => {
                    if let Some(byte) = self.late.take() {
                        self.receive(byte);
                    }
                    self.latched.set(self.latched.get() & !value);
                }
                RECEIVER_TIMEOUT => assert_eq!(value, 0),
                RECEIVER_TRIGGER => assert_eq!(value, 1),
                FIFO => {
                    assert!(self.to_send.get() < DEPTH, "the FIFO is full");
                    self.to_send.set(self.to_send.get() + 1);
                    self.sent.borrow_mut().push(value as u8);
                }
                _ => panic!("{offset:#x} is not written"),
            }
        }
    }

    #[test]
    fn firmwares_speed_stays() {
        let model = Model::new();
        Cadence::new(&model);
        assert_eq!((model.mode.get(), model.control.get(), model.enabled.get()), (NO_PARITY | CLOCK_BY_8, 0x14, 0));
    }

    #[test]
    fn a_full_transmitter_interrupts_once_it_is_empty() {
        let model = Model::new();
        let uart = Cadence::new(&model);
        let sent = (0..200).take_while(|&byte| uart.try_send(byte)).count();
        assert_eq!((sent, model.sent.borrow().len()), (DEPTH, DEPTH));
        uart.set_interrupts(true, true);
        assert_eq!(model.interrupts(), 0, "no interrupt before there is room");
        model.transmit();
        assert_eq!(model.interrupts(), TRANSMITTER_EMPTY);
        uart.set_interrupts(true, false);
        assert_eq!(model.interrupts(), 0);
        // A transmitter that has been empty for long interrupts at once: no event is to come.
        uart.set_interrupts(true, true);
        assert_eq!(model.interrupts(), TRANSMITTER_EMPTY);
    }

    #[test]
    fn received_bytes_interrupt_until_all_were_taken() {
        let model = Model::new();
        let uart = Cadence::new(&model);
        uart.set_interrupts(true, false);
        model.receive(5);
        model.receive(6);
        assert_eq!((uart.try_receive(), model.interrupts()), (Some(5), RECEIVED));
        uart.set_interrupts(true, false);
        assert_eq!(model.interrupts(), RECEIVED, "a byte is left");
        assert_eq!((uart.try_receive(), uart.try_receive(), model.interrupts()), (Some(6), None, 0));
        // One that comes between the look and the write.
        model.late.set(Some(7));
        assert_eq!((uart.try_receive(), uart.try_receive()), (Some(7), None));
    }
}
