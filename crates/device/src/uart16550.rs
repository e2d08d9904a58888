//! A PC's serial port: the 16550 UART (*TL16C550C Asynchronous Communications Element*, SLLS177, "Principles of
//! Operation"). `OUT2` gates its interrupt, as on a PC.
//!
//! Transmission takes no time, as in [`crate::pl011`], unless the caller has signalled back pressure
//! ([`Uart16550::set_tx_full`]). There are no line errors, and the modem inputs are asserted. A byte without room in
//! the FIFO stays with the caller. The receiver's time-out and trigger level are not modelled: each byte raises the
//! interrupt when it arrives.

use heapless::Deque;
use stile_snapshot::pc::Uart16550 as Saved;

use crate::line::Line;
pub use crate::pl011::{Read, Receive, Write};

/// Offsets of the registers.
pub mod offset {
    /// Receiver buffer (read), transmitter holding (write); divisor's low byte while `DLAB` is set.
    pub const DATA: u32 = 0;
    /// Interrupt enable; divisor's high byte while `DLAB` is set.
    pub const IER: u32 = 1;
    /// Interrupt identification (read), FIFO control (write).
    pub const IIR_FCR: u32 = 2;
    /// Line control.
    pub const LCR: u32 = 3;
    /// Modem control.
    pub const MCR: u32 = 4;
    /// Line status.
    pub const LSR: u32 = 5;
    /// Modem status.
    pub const MSR: u32 = 6;
    /// Scratch.
    pub const SCRATCH: u32 = 7;
}

const IER_RECEIVED: u8 = 1 << 0;
const IER_EMPTY: u8 = 1 << 1;
const IIR_NONE: u8 = 0b0001;
const IIR_EMPTY: u8 = 0b0010;
const IIR_RECEIVED: u8 = 0b0100;
const FCR_ENABLE: u8 = 1 << 0;
const FCR_CLEAR_RECEIVER: u8 = 1 << 1;
/// IIR: FIFOs are enabled.
const IIR_FIFOS: u8 = 0b11 << 6;
const LCR_DLAB: u8 = 1 << 7;
const MCR_OUT2: u8 = 1 << 3;
const MCR_LOOP: u8 = 1 << 4;
const LSR_RECEIVED: u8 = 1 << 0;
/// LSR: transmitter holding register and transmitter empty.
const LSR_EMPTY: u8 = 0b11 << 5;
/// CTS, DSR and DCD.
const MSR_READY: u8 = 0b1011 << 4;

/// Bytes in the receiver's FIFO.
const FIFO: usize = 16;

/// A 16550.
#[derive(Clone, Debug)]
pub struct Uart16550 {
    received: Deque<u8, FIFO>,
    fifos: bool,
    enabled: u8,
    line_control: u8,
    modem_control: u8,
    scratch: u8,
    divisor: [u8; 2],
    /// The transmitter-empty interrupt is pending.
    empty: bool,
    tx_full: bool,
    line: Line,
}

impl Default for Uart16550 {
    fn default() -> Self {
        Self::new()
    }
}

impl Uart16550 {
    /// The UART after reset.
    pub const fn new() -> Self {
        Self {
            received: Deque::new(),
            fifos: false,
            enabled: 0,
            line_control: 0,
            modem_control: 0,
            scratch: 0,
            divisor: [0; 2],
            empty: false,
            tx_full: false,
            line: Line::LOW,
        }
    }

    /// The line status, which guests poll for every byte. A load of it has no side effects.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.line_status().into()
    }

    /// The guest loads from the register at `offset`; all ones beyond the registers.
    pub fn read(&mut self, offset: u32) -> Read {
        if offset == offset::LSR {
            return Read { value: self.flags(), irq: None };
        }
        let value = match offset {
            offset::DATA if self.has_divisor() => self.divisor[0],
            offset::DATA => self.received.pop_front().unwrap_or(0),
            offset::IER if self.has_divisor() => self.divisor[1],
            offset::IER => self.enabled,
            offset::IIR_FCR => self.identify(),
            offset::LCR => self.line_control,
            offset::MCR => self.modem_control,
            offset::MSR => self.modem_status(),
            offset::SCRATCH => self.scratch,
            _ => 0xff,
        };
        Read { value: value.into(), irq: self.update() }
    }

    /// The guest stores to the register at `offset`; no effect beyond the registers.
    pub fn write(&mut self, offset: u32, value: u32) -> Write {
        let value = value as u8;
        let mut tx = None;
        match offset {
            offset::DATA if self.has_divisor() => self.divisor[0] = value,
            offset::DATA if self.modem_control & MCR_LOOP != 0 => {
                // A byte without room is lost, as on the line.
                let _ = self.received.push_back(value);
            }
            offset::DATA => {
                tx = Some(value);
                self.empty = !self.tx_full;
            }
            offset::IER if self.has_divisor() => self.divisor[1] = value,
            offset::IER => {
                // Enabling the interrupt of an empty transmitter raises it.
                self.empty |= value & !self.enabled & IER_EMPTY != 0 && !self.tx_full;
                self.enabled = value & 0xf;
            }
            offset::IIR_FCR => {
                let fifos = value & FCR_ENABLE != 0;
                if fifos != self.fifos || value & FCR_CLEAR_RECEIVER != 0 {
                    self.received.clear();
                }
                self.fifos = fifos;
            }
            offset::LCR => self.line_control = value,
            offset::MCR => self.modem_control = value & 0x1f,
            offset::SCRATCH => self.scratch = value,
            _ => {}
        }
        Write { tx, irq: self.update() }
    }

    /// A byte arrives for the guest.
    pub fn receive(&mut self, byte: u8) -> Receive {
        let room = if self.fifos { FIFO } else { 1 };
        let accepted = self.received.len() < room && self.modem_control & MCR_LOOP == 0 && self.received.push_back(byte).is_ok();
        Receive { accepted, irq: self.update() }
    }

    /// Signals back pressure: whether the caller cannot take bytes now. Returns the interrupt line's new level, if it changed.
    pub fn set_tx_full(&mut self, full: bool) -> Option<bool> {
        self.empty = (self.empty || self.tx_full) && !full;
        self.tx_full = full;
        self.update()
    }

    /// Exports the state.
    pub fn save(&self) -> Saved {
        let mut received = [0; FIFO];
        for (to, byte) in received.iter_mut().zip(&self.received) {
            *to = *byte;
        }
        Saved {
            received,
            count: self.received.len() as u8,
            fifos: self.fifos,
            enabled: self.enabled,
            line_control: self.line_control,
            modem_control: self.modem_control,
            scratch: self.scratch,
            divisor: self.divisor,
            empty: self.empty,
            full: self.tx_full,
        }
    }

    /// Imports a state, reduced to one that a guest could have produced.
    pub fn restore(&mut self, from: &Saved) {
        *self = Self {
            received: Deque::new(),
            fifos: from.fifos,
            enabled: from.enabled & 0xf,
            line_control: from.line_control,
            modem_control: from.modem_control & 0x1f,
            scratch: from.scratch,
            divisor: from.divisor,
            empty: from.empty,
            tx_full: from.full,
            line: Line::LOW,
        };
        for &byte in from.received.iter().take(from.count.into()) {
            let _ = self.received.push_back(byte);
        }
        let _ = self.update();
    }

    /// Level of the interrupt line.
    pub const fn irq(&self) -> bool {
        self.line.level()
    }

    fn has_divisor(&self) -> bool {
        self.line_control & LCR_DLAB != 0
    }

    fn line_status(&self) -> u8 {
        let received = if self.received.is_empty() { 0 } else { LSR_RECEIVED };
        let empty = if self.tx_full { 0 } else { LSR_EMPTY };
        received | empty
    }

    /// In loopback mode the outputs DTR, RTS, OUT1 and OUT2 appear as the modem inputs DSR, CTS, RI and DCD.
    fn modem_status(&self) -> u8 {
        let control = self.modem_control;
        if control & MCR_LOOP == 0 {
            return MSR_READY;
        }
        (control & 1) << 5 | (control & 2) << 3 | (control & 4) << 4 | (control & 8) << 4
    }

    /// Returns the enabled pending interrupt of the highest priority.
    fn pending(&self) -> u8 {
        if self.enabled & IER_RECEIVED != 0 && !self.received.is_empty() {
            IIR_RECEIVED
        } else if self.enabled & IER_EMPTY != 0 && self.empty {
            IIR_EMPTY
        } else {
            IIR_NONE
        }
    }

    /// Reads IIR, which clears the transmitter-empty interrupt.
    fn identify(&mut self) -> u8 {
        let pending = self.pending();
        if pending == IIR_EMPTY {
            self.empty = false;
        }
        pending | if self.fifos { IIR_FIFOS } else { 0 }
    }

    fn update(&mut self) -> Option<bool> {
        let gate = self.modem_control & MCR_OUT2 != 0 && self.modem_control & MCR_LOOP == 0;
        let level = gate && self.pending() != IIR_NONE;
        self.line.drive(level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn open() -> Uart16550 {
        let mut uart = Uart16550::new();
        uart.write(offset::IIR_FCR, 0x07);
        uart.write(offset::MCR, 0x0b);
        uart
    }

    #[test]
    fn bytes_are_transmitted_at_once() {
        let mut uart = Uart16550::new();
        assert_eq!(uart.read(offset::LSR).value, 0x60);
        assert_eq!(uart.write(offset::DATA, 0x41).tx, Some(0x41));
        assert_eq!(uart.read(offset::LSR).value, 0x60);
        uart.set_tx_full(true);
        assert_eq!(uart.read(offset::LSR).value, 0);
    }

    #[test]
    fn transmitter_interrupt() {
        let mut uart = open();
        assert_eq!(uart.write(offset::IER, 0b10).irq, Some(true));
        let read = uart.read(offset::IIR_FCR);
        assert_eq!((read.value, read.irq), (0xc2, Some(false)));
        assert_eq!(uart.read(offset::IIR_FCR).value, 0xc1);
        assert_eq!(uart.write(offset::DATA, 0x41).irq, Some(true));
        uart.read(offset::IIR_FCR);
        assert_eq!(uart.set_tx_full(true), None);
        assert_eq!(uart.write(offset::DATA, 0x42).irq, None);
        assert_eq!(uart.set_tx_full(false), Some(true));
    }

    #[test]
    fn receive_interrupt_lasts_until_all_bytes_are_read() {
        let mut uart = open();
        uart.write(offset::IER, 0b01);
        assert_eq!(uart.receive(0x61), Receive { accepted: true, irq: Some(true) });
        assert_eq!(uart.read(offset::IIR_FCR).value, 0xc4);
        assert_eq!(uart.read(offset::LSR).value, 0x61);
        assert_eq!(uart.read(offset::DATA), Read { value: 0x61, irq: Some(false) });
        for n in 0..FIFO {
            assert!(uart.receive(n as u8).accepted);
        }
        assert!(!uart.receive(0).accepted);
    }

    #[test]
    fn out2_gates_the_interrupt() {
        let mut uart = open();
        uart.write(offset::IER, 0b11);
        assert_eq!(uart.write(offset::MCR, 0x03).irq, Some(false));
        assert_eq!(uart.write(offset::MCR, 0x0b).irq, Some(true));
    }

    /// Linux's tests for the presence of a UART.
    #[test]
    fn loop_back_and_scratch() {
        let mut uart = Uart16550::new();
        uart.write(offset::MCR, 0x1a);
        assert_eq!(uart.read(offset::MSR).value & 0xf0, 0x90);
        assert_eq!(uart.write(offset::DATA, 0x33).tx, None);
        assert_eq!(uart.read(offset::DATA).value, 0x33);
        uart.write(offset::SCRATCH, 0x5a);
        assert_eq!(uart.read(offset::SCRATCH).value, 0x5a);
        uart.write(offset::LCR, 0x83);
        uart.write(offset::DATA, 0x01);
        uart.write(offset::IER, 0x02);
        assert_eq!((uart.read(offset::DATA).value, uart.read(offset::IER).value), (1, 2));
        uart.write(offset::LCR, 0x03);
        assert_eq!(uart.read(offset::IER).value, 0);
    }

    proptest! {
        /// The line is high if and only if IIR reports a pending interrupt and OUT2 is set.
        #[test]
        fn the_line_says_what_iir_says(steps in proptest::collection::vec((0u32..9, 0u32..256, 0u8..4), 0..200)) {
            let mut uart = open();
            let mut level = false;
            for (offset, value, what) in steps {
                let irq = match what {
                    0 => uart.read(offset).irq,
                    1 => uart.write(offset, value).irq,
                    2 => uart.receive(value as u8).irq,
                    _ => uart.set_tx_full(value & 1 != 0),
                };
                prop_assert_ne!(irq, Some(level));
                level = irq.unwrap_or(level);
                let pending = uart.clone().read(offset::IIR_FCR).value & 1 == 0;
                prop_assert_eq!(level, pending && uart.modem_control & 0x18 == 0x08);
            }
        }
    }
}
