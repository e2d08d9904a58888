//! 16550A UART: *PC16550D Universal Asynchronous Receiver/Transmitter with FIFOs*.
//!
//! As the PL011's model does, it transmits in no time, makes no line errors and refuses what finds no room. A character that
//! arrives is announced at once, as if the line fell silent after it. The interrupt output is the UART's own: it is not gated by
//! OUT2, as a PC's is.

use crate::line::Line;

#[cfg(test)]
mod tests;

type Fifo = crate::fifo::Fifo<16>;

/// Offsets of the registers: "Registers".
pub mod offset {
    /// Receiver buffer (read), transmitter holding (write), divisor low.
    pub const DATA: u16 = 0;
    /// Interrupt enable, divisor high.
    pub const IER: u16 = 1;
    /// Interrupt identification (read), FIFO control (write).
    pub const IIR_FCR: u16 = 2;
    /// Line control.
    pub const LCR: u16 = 3;
    /// Modem control.
    pub const MCR: u16 = 4;
    /// Line status.
    pub const LSR: u16 = 5;
    /// Modem status.
    pub const MSR: u16 = 6;
    /// Scratch.
    pub const SCR: u16 = 7;
}

const IER_RECEIVED: u8 = 1 << 0;
const IER_EMPTY: u8 = 1 << 1;

const IIR_NONE: u8 = 0x01;
const IIR_EMPTY: u8 = 0x02;
const IIR_RECEIVED: u8 = 0x04;
const IIR_TIMEOUT: u8 = 0x0c;
const IIR_FIFOS: u8 = 0xc0;

const FCR_ENABLE: u8 = 1 << 0;
const FCR_CLEAR_RECEIVER: u8 = 1 << 1;

const LCR_DIVISOR: u8 = 1 << 7;
const MCR_LOOP: u8 = 1 << 4;

const LSR_READY: u8 = 1 << 0;
/// The holding register and the transmitter are empty.
const LSR_EMPTY: u8 = 3 << 5;
/// Clear to send, data set ready, carrier: the other end is there.
const MSR_CONNECTED: u8 = 0xb0;

/// What a read gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The register.
    pub value: u8,
    /// The interrupt line's new level, if it changed.
    pub irq: Option<bool>,
}

/// What a write causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// A byte that the guest transmits.
    pub tx: Option<u8>,
    /// The interrupt line's new level, if it changed.
    pub irq: Option<bool>,
}

/// What became of a byte that arrived for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// False if the FIFO had no room: the byte was not taken.
    pub accepted: bool,
    /// The interrupt line's new level, if it changed.
    pub irq: Option<bool>,
}

/// A 16550A.
#[derive(Clone, Debug)]
pub struct Uart16550 {
    rx: Fifo,
    fifo_control: u8,
    interrupts: u8,
    line_control: u8,
    modem_control: u8,
    scratch: u8,
    divisor: [u8; 2],
    tx_full: bool,
    /// The transmitter became empty, and the guest was not told yet.
    emptied: bool,
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
            rx: Fifo::new(),
            fifo_control: 0,
            interrupts: 0,
            line_control: 0,
            modem_control: 0,
            scratch: 0,
            divisor: [12, 0],
            tx_full: false,
            emptied: false,
            line: Line::LOW,
        }
    }

    /// The guest reads the register at `offset`, 0 to 7.
    #[inline]
    pub fn read(&mut self, offset: u16) -> Read {
        // Guests poll this before each byte.
        if offset == offset::LSR {
            return Read { value: self.line_status(), irq: None };
        }
        let value = match offset {
            offset::DATA if self.divisor_shown() => self.divisor[0],
            offset::IER if self.divisor_shown() => self.divisor[1],
            offset::DATA => self.rx.pop().unwrap_or(0),
            offset::IER => self.interrupts,
            offset::IIR_FCR => self.identify(),
            offset::LCR => self.line_control,
            offset::MCR => self.modem_control,
            offset::MSR => self.modem_status(),
            offset::SCR => self.scratch,
            _ => 0xff,
        };
        Read { value, irq: self.update_line() }
    }

    /// The guest writes the register at `offset`, 0 to 7.
    #[inline]
    pub fn write(&mut self, offset: u16, value: u8) -> Write {
        let mut tx = None;
        match offset {
            offset::DATA if self.divisor_shown() => self.divisor[0] = value,
            offset::IER if self.divisor_shown() => self.divisor[1] = value,
            offset::DATA => tx = self.transmit(value),
            offset::IER => {
                // Allowing the interrupt while the transmitter is empty raises it.
                self.emptied |= value & !self.interrupts & IER_EMPTY != 0 && !self.tx_full;
                self.interrupts = value & 0xf;
            }
            offset::IIR_FCR => self.control_fifos(value),
            offset::LCR => self.line_control = value,
            offset::MCR => self.modem_control = value & 0x1f,
            offset::SCR => self.scratch = value,
            _ => {}
        }
        Write { tx, irq: self.update_line() }
    }

    /// A byte arrives for the guest.
    pub fn receive(&mut self, byte: u8) -> Receive {
        let accepted = self.rx_room() != 0 && self.modem_control & MCR_LOOP == 0;
        if accepted {
            self.rx.push(byte);
        }
        Receive { accepted, irq: self.update_line() }
    }

    /// How many bytes find room now, 0 to 16 (1 while the FIFOs are off).
    pub fn rx_room(&self) -> usize {
        let capacity = if self.fifo_control & FCR_ENABLE != 0 { Fifo::DEPTH } else { 1 };
        capacity.saturating_sub(self.rx.len())
    }

    /// Whether the guest lets a received byte interrupt it. Drivers discard what arrives earlier.
    pub const fn rx_interrupt_enabled(&self) -> bool {
        self.interrupts & IER_RECEIVED != 0
    }

    /// Says whether the transmitter is to look full: whether the caller can't take a byte now.
    /// [`write`](Self::write) hands over what a guest writes all the same.
    pub fn set_tx_full(&mut self, full: bool) -> Option<bool> {
        if full != self.tx_full {
            self.tx_full = full;
            self.emptied = !full;
        }
        self.update_line()
    }

    /// The interrupt line's level.
    pub const fn irq(&self) -> bool {
        self.line.level()
    }

    fn transmit(&mut self, byte: u8) -> Option<u8> {
        self.emptied = !self.tx_full;
        if self.modem_control & MCR_LOOP == 0 {
            return Some(byte);
        }
        if self.rx_room() != 0 {
            self.rx.push(byte);
        }
        None
    }

    fn control_fifos(&mut self, value: u8) {
        if (value ^ self.fifo_control) & FCR_ENABLE != 0 || value & FCR_CLEAR_RECEIVER != 0 {
            self.rx.clear();
        }
        self.fifo_control = value & (IIR_FIFOS | FCR_ENABLE);
    }

    fn line_status(&self) -> u8 {
        let ready = if self.rx.is_empty() { 0 } else { LSR_READY };
        ready | if self.tx_full { 0 } else { LSR_EMPTY }
    }

    /// In loopback the modem outputs are the inputs.
    const fn modem_status(&self) -> u8 {
        let out = self.modem_control;
        if out & MCR_LOOP == 0 {
            return MSR_CONNECTED;
        }
        (out & 0xc) << 4 | (out & 1) << 5 | (out & 2) << 3
    }

    /// The interrupt of the highest priority; telling that the transmitter is empty ends that one.
    fn identify(&mut self) -> u8 {
        let source = self.source();
        if source == IIR_EMPTY {
            self.emptied = false;
        }
        source | if self.fifo_control & FCR_ENABLE != 0 { IIR_FIFOS } else { 0 }
    }

    fn source(&self) -> u8 {
        if self.interrupts & IER_RECEIVED != 0 && !self.rx.is_empty() {
            return if self.rx.len() >= self.trigger() { IIR_RECEIVED } else { IIR_TIMEOUT };
        }
        if self.interrupts & IER_EMPTY != 0 && self.emptied { IIR_EMPTY } else { IIR_NONE }
    }

    const fn trigger(&self) -> usize {
        match (self.fifo_control & FCR_ENABLE, self.fifo_control >> 6) {
            (0, _) | (_, 0) => 1,
            (_, 1) => 4,
            (_, 2) => 8,
            _ => 14,
        }
    }

    const fn divisor_shown(&self) -> bool {
        self.line_control & LCR_DIVISOR != 0
    }

    fn update_line(&mut self) -> Option<bool> {
        self.line.drive(self.source() != IIR_NONE)
    }
}
