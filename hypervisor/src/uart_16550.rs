//! A 16550 and its relatives (TL16C550C data sheet, "Register summary"), under the console.

use core::sync::atomic::{AtomicU8, Ordering};

/// Data; with LINE_CONTROL.DLAB set, the divisor's low byte.
pub const DATA: u8 = 0;
/// Interrupt enable; with LINE_CONTROL.DLAB set, the divisor's high byte.
pub const INTERRUPT_ENABLE: u8 = 1;
const FIFO_CONTROL: u8 = 2;
/// Line control.
pub const LINE_CONTROL: u8 = 3;
const MODEM_CONTROL: u8 = 4;
/// Line status.
pub const LINE_STATUS: u8 = 5;

const RECEIVED: u8 = 1 << 0;
const TRANSMIT_EMPTY: u8 = 1 << 5;

/// Access to the eight registers, which the caller maps.
pub trait Registers {
    /// Reads a register.
    fn read(&self, register: u8) -> u8;
    /// Writes a register.
    fn write(&self, register: u8, value: u8);
}

/// Number of reads of the line status until a transmitter counts as absent: firmware's last 16 characters take 130 ms at 1200 baud.
#[allow(dead_code, reason = "used by `can_send`")]
const PATIENCE: u32 = 1 << 20;

/// Whether there is a transmitter that becomes empty. A line status of all ones is that of an absent device.
#[allow(dead_code, reason = "not every back end asks")]
pub fn can_send(registers: &impl Registers) -> bool {
    (0..PATIENCE).map(|_| registers.read(LINE_STATUS)).find(|status| status & TRANSMIT_EMPTY != 0).is_some_and(|status| status != u8::MAX)
}

/// A UART.
pub struct Uart16550<R> {
    registers: R,
    /// Number of bytes that an empty transmitter takes.
    fifo: u8,
    /// Number of bytes that may be sent before the line status is read again. Accessed under the console's lock.
    room: AtomicU8,
}

impl<R: Registers> Uart16550<R> {
    /// Takes over a UART with firmware's speed: 8N1, FIFOs enabled, interrupts disabled. `fifo`: number of bytes that it takes
    /// when it says that its transmitter is empty, from 1.
    pub fn new(registers: R, fifo: u8) -> Uart16550<R> {
        registers.write(LINE_CONTROL, 0b11);
        registers.write(INTERRUPT_ENABLE, 0);
        // FIFOs enabled and cleared; a receive interrupt for each byte.
        registers.write(FIFO_CONTROL, 0b111);
        // DTR, RTS, and OUT2, which gates the interrupt on a PC.
        registers.write(MODEM_CONTROL, 0b1011);
        Uart16550 { registers, fifo, room: AtomicU8::new(0) }
    }

    /// Sends a byte if the FIFO has room.
    pub fn try_send(&self, byte: u8) -> bool {
        let mut room = self.room.load(Ordering::Relaxed);
        if room == 0 {
            if self.registers.read(LINE_STATUS) & TRANSMIT_EMPTY == 0 {
                return false;
            }
            room = self.fifo;
        }
        self.room.store(room - 1, Ordering::Relaxed);
        self.registers.write(DATA, byte);
        true
    }

    /// Returns a received byte.
    pub fn try_receive(&self) -> Option<u8> {
        (self.registers.read(LINE_STATUS) & RECEIVED != 0).then(|| self.registers.read(DATA))
    }

    /// Clears the interrupt, and selects the next ones.
    pub fn set_interrupts(&self, receive: bool, send: bool) {
        // An edge-triggered line must fall before it can rise for a pending cause.
        self.registers.write(INTERRUPT_ENABLE, 0);
        self.registers.write(INTERRUPT_ENABLE, u8::from(receive) | u8::from(send) << 1);
    }
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::vec::Vec;

    use super::*;

    /// A UART whose transmitter takes some bytes until it is emptied.
    #[derive(Default)]
    struct Model {
        sent: RefCell<Vec<u8>>,
        received: RefCell<Vec<u8>>,
        full: RefCell<bool>,
        enabled: RefCell<Vec<u8>>,
    }

    impl Registers for &Model {
        fn read(&self, register: u8) -> u8 {
            match register {
                DATA => self.received.borrow_mut().remove(0),
                LINE_STATUS => u8::from(!self.received.borrow().is_empty()) | if *self.full.borrow() { 0 } else { TRANSMIT_EMPTY },
                _ => panic!("register {register} is not read"),
            }
        }

        fn write(&self, register: u8, value: u8) {
            match register {
                DATA => self.sent.borrow_mut().push(value),
                INTERRUPT_ENABLE => self.enabled.borrow_mut().push(value),
                LINE_CONTROL => assert_eq!(value & 0x80, 0, "the divisor is firmware's"),
                _ => {}
            }
        }
    }

    #[test]
    fn an_empty_transmitter_takes_its_fifo() {
        let model = Model::default();
        let uart = Uart16550::new(&model, 2);
        assert!(uart.try_send(1));
        *model.full.borrow_mut() = true;
        assert!(uart.try_send(2));
        assert!(!uart.try_send(3));
        *model.full.borrow_mut() = false;
        assert!(uart.try_send(3));
        assert_eq!(*model.sent.borrow(), [1, 2, 3]);
    }

    #[test]
    fn a_transmitter_becomes_empty() {
        struct Status(u8, RefCell<u32>);
        impl Registers for Status {
            fn read(&self, register: u8) -> u8 {
                assert_eq!(register, LINE_STATUS);
                let mut busy = self.1.borrow_mut();
                *busy = busy.saturating_sub(1);
                if *busy == 0 { self.0 } else { 0 }
            }
            fn write(&self, _register: u8, _value: u8) {}
        }
        assert!(can_send(&Status(TRANSMIT_EMPTY, RefCell::new(1000))));
        assert!(!can_send(&Status(0, RefCell::new(0))), "zeros");
        assert!(!can_send(&Status(u8::MAX, RefCell::new(0))), "ones");
    }

    #[test]
    fn input_and_interrupts() {
        let model = Model { received: RefCell::new(vec![5, 6]), ..Model::default() };
        let uart = Uart16550::new(&model, 1);
        assert_eq!([uart.try_receive(), uart.try_receive(), uart.try_receive()], [Some(5), Some(6), None]);
        uart.set_interrupts(true, false);
        uart.set_interrupts(true, true);
        assert_eq!(*model.enabled.borrow(), [0, 0, 1, 0, 3]);
    }
}
