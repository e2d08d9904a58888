//! Arm PrimeCell UART (PL011), revision r1p5: *PrimeCell UART (PL011) Technical Reference Manual*,
//! DDI 0183.
//!
//! Transmission takes no time: a byte written to `UARTDR` is passed to the caller immediately, so the
//! transmitter is empty again before the guest's next instruction, unless the caller has
//! signalled back pressure ([`Pl011::set_tx_full`]). Bytes are transmitted and received even if
//! the guest has not enabled the UART, its FIFOs or a direction: small programs never do.
//!
//! There are no line errors: `UARTRSR`, and the error flags in `UARTDR`, are always zero. There is
//! no overrun either: a byte that does not fit is refused and stays with the caller. DMA requests,
//! modem outputs, IrDA and the test registers have no effect.
//!
//! The *receive* interrupt is raised when the FIFO reaches its trigger level, and the *receive
//! timeout* interrupt for each character that arrives, as if the line fell silent after it. Single
//! key strokes therefore arrive immediately.

use stile_snapshot::device::Pl011 as Saved;

use crate::line::Line;
use crate::primecell::{ID_BASE, Id};

#[cfg(test)]
mod tests;

/// Byte offsets of the registers: DDI 0183, "Summary of registers".
pub mod offset {
    /// Data register.
    pub const DR: u32 = 0x000;
    /// Receive status (read), error clear (write).
    pub const RSR_ECR: u32 = 0x004;
    /// Flag register.
    pub const FR: u32 = 0x018;
    /// IrDA low-power counter.
    pub const ILPR: u32 = 0x020;
    /// Integer baud rate divisor.
    pub const IBRD: u32 = 0x024;
    /// Fractional baud rate divisor.
    pub const FBRD: u32 = 0x028;
    /// Line control.
    pub const LCR_H: u32 = 0x02c;
    /// Control.
    pub const CR: u32 = 0x030;
    /// Interrupt FIFO level select.
    pub const IFLS: u32 = 0x034;
    /// Interrupt mask set/clear: a 1 lets the interrupt through.
    pub const IMSC: u32 = 0x038;
    /// Raw interrupt status.
    pub const RIS: u32 = 0x03c;
    /// Masked interrupt status.
    pub const MIS: u32 = 0x040;
    /// Interrupt clear.
    pub const ICR: u32 = 0x044;
    /// DMA control.
    pub const DMACR: u32 = 0x048;
}

/// Bits of `UARTFR`.
mod fr {
    pub const CTS: u32 = 1 << 0;
    pub const DSR: u32 = 1 << 1;
    pub const DCD: u32 = 1 << 2;
    pub const RXFE: u32 = 1 << 4;
    pub const TXFF: u32 = 1 << 5;
    pub const RXFF: u32 = 1 << 6;
    pub const TXFE: u32 = 1 << 7;
    /// The modem inputs are asserted, so that a guest does not wait for a carrier.
    pub const MODEM: u32 = CTS | DSR | DCD;
}

/// Bits of the interrupt registers.
mod int {
    pub const RX: u32 = 1 << 4;
    pub const TX: u32 = 1 << 5;
    /// Receive timeout.
    pub const RT: u32 = 1 << 6;
    pub const ALL: u32 = 0x7ff;
}

/// 32 deep since r1p5.
type Fifo = crate::fifo::Fifo<32>;

const LCR_H_FEN: u32 = 1 << 4;
const CR_LBE: u32 = 1 << 7;

/// Implemented bits of registers without side effects.
mod mask {
    pub const ILPR: u32 = 0xff;
    pub const IBRD: u32 = 0xffff;
    pub const FBRD: u32 = 0x3f;
    pub const LCR_H: u32 = 0xff;
    pub const CR: u32 = 0xff87;
    pub const IFLS: u32 = 0x3f;
    pub const DMACR: u32 = 0x7;
}

/// r1p5, the revision whose FIFOs are 32 deep; drivers read the depth from the revision.
const ID: Id = Id::arm(0x011, 3);

/// The result of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The register, shifted down by the byte lanes that the offset skips.
    pub value: u32,
    /// The interrupt line's new level, if it changed.
    pub irq: Option<bool>,
}

/// The effects of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// A byte that the guest transmits.
    pub tx: Option<u8>,
    /// The interrupt line's new level, if it changed.
    pub irq: Option<bool>,
}

/// The result of offering a byte to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// False if the FIFO had no room, so that the byte was not taken.
    pub accepted: bool,
    /// The interrupt line's new level, if it changed.
    pub irq: Option<bool>,
}

/// A PL011.
#[derive(Clone, Debug)]
pub struct Pl011 {
    /// `UARTFR`, kept up to date.
    flags: u32,
    raw: u32,
    mask: u32,
    line: Line,
    tx_full: bool,
    rx: Fifo,
    line_control: u32,
    control: u32,
    level_select: u32,
    low_power: u32,
    baud_integer: u32,
    baud_fraction: u32,
    dma: u32,
}

impl Default for Pl011 {
    fn default() -> Self {
        Self::new()
    }
}

impl Pl011 {
    /// The UART after reset: DDI 0183, "Summary of registers", and all modem inputs asserted.
    pub const fn new() -> Self {
        Self {
            flags: fr::TXFE | fr::RXFE | fr::MODEM,
            raw: 0,
            mask: 0,
            line: Line::LOW,
            tx_full: false,
            rx: Fifo::new(),
            line_control: 0,
            control: 0x300,
            level_select: 0x12,
            low_power: 0,
            baud_integer: 0,
            baud_fraction: 0,
            dma: 0,
        }
    }

    /// Returns `UARTFR`.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The guest loads from `offset`.
    pub fn read(&mut self, offset: u32) -> Read {
        let mut irq = None;
        let register = match offset & !3 {
            // Only an access to the character's byte lane removes it from the FIFO.
            offset::DR if offset & 3 == 0 => {
                let byte = self.take_received();
                irq = self.update_line();
                byte.into()
            }
            offset::FR => self.flags,
            offset::ILPR => self.low_power,
            offset::IBRD => self.baud_integer,
            offset::FBRD => self.baud_fraction,
            offset::LCR_H => self.line_control,
            offset::CR => self.control,
            offset::IFLS => self.level_select,
            offset::IMSC => self.mask,
            offset::RIS => self.raw,
            offset::MIS => self.raw & self.mask,
            offset::DMACR => self.dma,
            identification @ ID_BASE.. => ID.read(identification),
            _ => 0,
        };
        Read { value: register >> ((offset & 3) * 8), irq }
    }

    /// The guest stores `value`, zero-extended from the access's width, to `offset`.
    #[inline]
    pub fn write(&mut self, offset: u32, value: u32) -> Write {
        if offset == offset::DR {
            return self.transmit(value as u8);
        }
        self.write_register(offset, value);
        Write { tx: None, irq: self.update_line() }
    }

    #[inline]
    fn transmit(&mut self, byte: u8) -> Write {
        if !self.tx_full {
            // The byte passed through the FIFO, whose level fell below the trigger level.
            self.raw |= int::TX;
        }
        let tx = if self.control & CR_LBE == 0 {
            Some(byte)
        } else {
            // In loopback mode a full FIFO drops the byte: no sender could retry.
            self.put_received(byte);
            None
        };
        Write { tx, irq: self.update_line() }
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        match offset {
            offset::ILPR => self.low_power = value & mask::ILPR,
            offset::IBRD => self.baud_integer = value & mask::IBRD,
            offset::FBRD => self.baud_fraction = value & mask::FBRD,
            offset::LCR_H => self.set_line_control(value & mask::LCR_H),
            offset::CR => self.control = value & mask::CR,
            offset::IFLS => self.level_select = value & mask::IFLS,
            offset::IMSC => self.mask = value & int::ALL,
            offset::ICR => self.raw &= !value,
            offset::DMACR => self.dma = value & mask::DMACR,
            // Read-only registers, UARTECR with no error to clear, and test registers.
            _ => {}
        }
    }

    /// A byte arrives for the guest.
    pub fn receive(&mut self, byte: u8) -> Receive {
        let accepted = self.put_received(byte);
        Receive { accepted, irq: self.update_line() }
    }

    /// Returns the number of bytes that [`Pl011::receive`] would accept now, 0 to 32 (1 while the FIFOs are disabled).
    pub fn rx_room(&self) -> usize {
        self.rx_capacity().saturating_sub(self.rx.len())
    }

    /// Whether the guest has enabled the receive interrupt. Drivers discard earlier input, so the
    /// hypervisor can hold typed-ahead input back until then.
    pub const fn rx_interrupt_enabled(&self) -> bool {
        self.mask & (int::RX | int::RT) != 0
    }

    /// Signals back pressure: whether the transmit FIFO appears full, because the caller cannot take
    /// a byte now. A guest may still write, as its transmit interrupt promised it half a FIFO of
    /// room; [`Pl011::write`] passes on those bytes too, and the caller may drop them.
    pub fn set_tx_full(&mut self, full: bool) -> Option<bool> {
        if full == self.tx_full {
            return None;
        }
        self.tx_full = full;
        if full {
            self.flags = self.flags & !fr::TXFE | fr::TXFF;
            self.raw &= !int::TX;
        } else {
            self.flags = self.flags & !fr::TXFF | fr::TXFE;
            self.raw |= int::TX;
        }
        self.update_line()
    }

    /// The interrupt line's level, `UARTINTR`.
    pub const fn irq(&self) -> bool {
        self.line.level()
    }

    /// Exports the state.
    pub fn save(&self) -> Saved {
        let mut rx = self.rx.clone();
        let count = rx.len() as u8;
        Saved {
            raw: self.raw,
            mask: self.mask,
            line_control: self.line_control,
            control: self.control,
            level_select: self.level_select,
            low_power: self.low_power,
            baud_integer: self.baud_integer,
            baud_fraction: self.baud_fraction,
            dma: self.dma,
            received: core::array::from_fn(|_| rx.pop().unwrap_or(0)),
            count,
            full: self.tx_full,
        }
    }

    /// Imports a state, reduced to one that a guest could have produced. Returns the interrupt line's level.
    pub fn restore(&mut self, from: &Saved) -> bool {
        *self = Self::new();
        self.line_control = from.line_control & mask::LCR_H;
        self.control = from.control & mask::CR;
        self.level_select = from.level_select & mask::IFLS;
        self.low_power = from.low_power & mask::ILPR;
        self.baud_integer = from.baud_integer & mask::IBRD;
        self.baud_fraction = from.baud_fraction & mask::FBRD;
        self.dma = from.dma & mask::DMACR;
        self.mask = from.mask & int::ALL;
        let received = from.received.get(..from.count.into()).unwrap_or(&from.received);
        received.iter().for_each(|&byte| {
            self.put_received(byte);
        });
        let _ = self.set_tx_full(from.full);
        self.raw = from.raw & int::ALL;
        let _ = self.update_line();
        self.irq()
    }

    #[inline]
    fn update_line(&mut self) -> Option<bool> {
        self.line.drive(self.raw & self.mask != 0)
    }

    const fn fifos_enabled(&self) -> bool {
        self.line_control & LCR_H_FEN != 0
    }

    const fn rx_capacity(&self) -> usize {
        if self.fifos_enabled() { Fifo::DEPTH } else { 1 }
    }

    /// Returns the receive interrupt's trigger level: DDI 0183, "Interrupt FIFO level select
    /// register". Reserved selections act as the deepest.
    const fn rx_trigger(&self) -> usize {
        if !self.fifos_enabled() {
            return 1;
        }
        match self.level_select >> 3 & 7 {
            0 => Fifo::DEPTH / 8,
            1 => Fifo::DEPTH / 4,
            2 => Fifo::DEPTH / 2,
            3 => Fifo::DEPTH * 3 / 4,
            _ => Fifo::DEPTH * 7 / 8,
        }
    }

    /// Writes line control. Enabling or disabling the FIFOs empties the receive FIFO.
    fn set_line_control(&mut self, value: u32) {
        if (value ^ self.line_control) & LCR_H_FEN != 0 {
            self.rx.clear();
            self.raw &= !(int::RX | int::RT);
        }
        self.line_control = value;
        self.update_rx_flags();
    }

    fn put_received(&mut self, byte: u8) -> bool {
        if self.rx_room() == 0 {
            return false;
        }
        self.rx.push(byte);
        self.raw |= int::RT;
        if self.rx.len() >= self.rx_trigger() {
            self.raw |= int::RX;
        }
        self.update_rx_flags();
        true
    }

    /// Removes the oldest received character; 0 if the FIFO is empty.
    fn take_received(&mut self) -> u8 {
        let byte = self.rx.pop().unwrap_or(0);
        if self.rx.len() < self.rx_trigger() {
            self.raw &= !int::RX;
        }
        if self.rx.is_empty() {
            self.raw &= !int::RT;
        }
        self.update_rx_flags();
        byte
    }

    fn update_rx_flags(&mut self) {
        self.flags &= !(fr::RXFE | fr::RXFF);
        if self.rx.is_empty() {
            self.flags |= fr::RXFE;
        }
        if self.rx_room() == 0 {
            self.flags |= fr::RXFF;
        }
    }
}
