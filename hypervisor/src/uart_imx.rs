//! The UART of NXP's i.MX 6 and 8M (i.MX 8M Plus Applications Processor Reference Manual, "Universal Asynchronous Receiver/Transmitter"),
//! under the console. The interrupts in use are levels: they follow the FIFOs.

use crate::uart_words::WordRegisters;

const RECEIVER: usize = 0x00;
const TRANSMITTER: usize = 0x40;
/// Control 1 to 4.
const UCR1: usize = 0x80;
const UCR2: usize = 0x84;
const UCR4: usize = 0x8c;
/// FIFO control.
const UFCR: usize = 0x90;
/// Test register, with the FIFOs' state.
pub const UTS: usize = 0xb4;

const UCR1_UARTEN: u32 = 1 << 0;
/// Interrupt: the receive FIFO has as many bytes as UFCR says.
const UCR1_RRDYEN: u32 = 1 << 9;
/// Interrupt: the transmit FIFO has fewer bytes than UFCR says.
const UCR1_TRDYEN: u32 = 1 << 13;
/// Not in reset, receiver and transmitter enabled, eight bits, no flow control.
const UCR2_8N1: u32 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 14;
/// The level for flow control; the other fields enable interrupts and modes.
const UCR4_CTSTL: u32 = 0x3f << 10;
/// The clock's divider and the direction of pins: as firmware's speed and wiring need.
const UFCR_KEPT: u32 = 0b111 << 7 | 1 << 6;
/// One received byte, fewer than two to send.
const UFCR_LEVELS: u32 = 1 | 2 << 10;
const UTS_TXFULL: u32 = 1 << 4;
const UTS_RXEMPTY: u32 = 1 << 5;

/// A UART.
pub struct Imx<R>(R);

impl<R: WordRegisters> Imx<R> {
    /// Takes over a UART with firmware's speed: 8N1, interrupts disabled. Keeps the bytes in its FIFOs.
    pub fn new(registers: R) -> Self {
        registers.write(UCR1, UCR1_UARTEN);
        registers.write(UCR2, UCR2_8N1);
        registers.write(UCR4, registers.read(UCR4) & UCR4_CTSTL);
        registers.write(UFCR, registers.read(UFCR) & UFCR_KEPT | UFCR_LEVELS);
        Self(registers)
    }

    /// Sends a byte if the FIFO has room.
    pub fn try_send(&self, byte: u8) -> bool {
        if self.0.read(UTS) & UTS_TXFULL != 0 {
            return false;
        }
        self.0.write(TRANSMITTER, byte.into());
        true
    }

    /// Returns a received byte.
    pub fn try_receive(&self) -> Option<u8> {
        (self.0.read(UTS) & UTS_RXEMPTY == 0).then(|| self.0.read(RECEIVER) as u8)
    }

    /// Selects the causes of interrupts: a received byte, and an almost empty transmitter.
    pub fn set_interrupts(&self, receive: bool, send: bool) {
        let causes = if receive { UCR1_RRDYEN } else { 0 } | if send { UCR1_TRDYEN } else { 0 };
        self.0.write(UCR1, UCR1_UARTEN | causes);
    }
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::collections::{BTreeMap, VecDeque};

    use super::*;

    const DEPTH: usize = 32;

    #[derive(Default)]
    struct Model {
        registers: RefCell<BTreeMap<usize, u32>>,
        to_send: RefCell<VecDeque<u8>>,
        received: RefCell<VecDeque<u8>>,
    }

    impl Model {
        fn get(&self, offset: usize) -> u32 {
            self.registers.borrow().get(&offset).copied().unwrap_or(0)
        }
    }

    impl WordRegisters for &Model {
        fn read(&self, offset: usize) -> u32 {
            match offset {
                RECEIVER => u32::from(self.received.borrow_mut().pop_front().expect("a byte was received")) | 1 << 15,
                UTS => {
                    let flag = |is_set, flag| if is_set { flag } else { 0 };
                    flag(self.to_send.borrow().len() == DEPTH, UTS_TXFULL) | flag(self.received.borrow().is_empty(), UTS_RXEMPTY)
                }
                _ => self.get(offset),
            }
        }

        fn write(&self, offset: usize, value: u32) {
            match offset {
                TRANSMITTER => self.to_send.borrow_mut().push_back(value as u8),
                UCR2 => assert_ne!(value & 1, 0, "a reset"),
                _ => drop(self.registers.borrow_mut().insert(offset, value)),
            }
        }
    }

    #[test]
    fn firmwares_speed_stays() {
        let model = Model::default();
        (&model).write(UFCR, 0x0a81);
        (&model).write(UCR4, 0x8009);
        Imx::new(&model);
        assert_eq!((model.get(UFCR), model.get(UCR4), model.get(UCR1)), (0x0a80 & 0x3c0 | 0x801, 0x8000, 1));
    }

    #[test]
    fn bytes_and_interrupts() {
        let model = Model { received: RefCell::new([5, 6].into()), ..Model::default() };
        let uart = Imx::new(&model);
        assert_eq!([uart.try_receive(), uart.try_receive(), uart.try_receive()], [Some(5), Some(6), None]);
        assert_eq!((0..100).take_while(|&byte| uart.try_send(byte)).count(), DEPTH);
        uart.set_interrupts(true, true);
        assert_eq!(model.get(UCR1), 1 | 1 << 9 | 1 << 13);
        uart.set_interrupts(true, false);
        assert_eq!(model.get(UCR1), 1 | 1 << 9);
        uart.set_interrupts(false, false);
        assert_eq!(model.get(UCR1), 1);
    }
}
