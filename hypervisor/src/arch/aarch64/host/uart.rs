//! The board's serial port: a PL011, a UART that is compatible with the 16550, Cadence's, or NXP's.

use stile_firmware::serial::{Kind, SerialPort};

use super::mmio::Mmio;
use super::pl011::Pl011;
use crate::address_space;
use crate::once::Once;
use crate::uart_16550::{Registers, Uart16550};
use crate::uart_cadence::Cadence;
use crate::uart_imx::Imx;
use crate::uart_words::WordRegisters;

enum Uart {
    Pl011(Pl011),
    Compatible(Uart16550<Window>),
    Cadence(Cadence<Mmio>),
    Imx(Imx<Mmio>),
}

/// Registers of a 16550, in memory.
struct Window {
    registers: Mmio,
    /// Base-2 logarithm of the distance between registers in bytes.
    shift: u8,
    /// Accesses have 32 bits, not 8.
    wide: bool,
}

impl Registers for Window {
    fn read(&self, register: u8) -> u8 {
        let offset = usize::from(register) << self.shift;
        if self.wide { self.registers.read32(offset) as u8 } else { self.registers.read8(offset) }
    }

    fn write(&self, register: u8, value: u8) {
        self.registers.write(usize::from(register) << self.shift, if self.wide { 4 } else { 1 }, value.into());
    }
}

impl WordRegisters for Mmio {
    fn read(&self, offset: usize) -> u32 {
        self.read32(offset)
    }

    fn write(&self, offset: usize, value: u32) {
        self.write32(offset, value);
    }
}

static UART: Once<Uart> = Once::new();

/// Maps the port's registers, and takes it over.
pub fn setup(port: &SerialPort) {
    let registers = Mmio::new(address_space::device(port.registers.clone()));
    UART.set(match port.kind {
        Kind::Pl011 => Uart::Pl011(Pl011::new(registers)),
        Kind::Compatible { shift, wide, fifo } => Uart::Compatible(Uart16550::new(Window { registers, shift, wide }, fifo)),
        Kind::Cadence => Uart::Cadence(Cadence::new(registers)),
        Kind::Imx => Uart::Imx(Imx::new(registers)),
    });
}

/// Sends a byte. Returns false if there is no room. On a board without a port the byte is lost.
pub fn try_send(byte: u8) -> bool {
    UART.try_get().is_none_or(|uart| match uart {
        Uart::Pl011(uart) => uart.try_send(byte),
        Uart::Compatible(uart) => uart.try_send(byte),
        Uart::Cadence(uart) => uart.try_send(byte),
        Uart::Imx(uart) => uart.try_send(byte),
    })
}

/// Returns a received byte, if there is one.
pub fn try_receive() -> Option<u8> {
    match UART.try_get()? {
        Uart::Pl011(uart) => uart.try_receive(),
        Uart::Compatible(uart) => uart.try_receive(),
        Uart::Cadence(uart) => uart.try_receive(),
        Uart::Imx(uart) => uart.try_receive(),
    }
}

/// Clears the interrupt, and selects the causes of the next one: a received byte, and transmit room.
pub fn set_interrupts(receive: bool, send: bool) {
    match UART.try_get() {
        Some(Uart::Pl011(uart)) => uart.set_interrupts(receive, send),
        Some(Uart::Compatible(uart)) => uart.set_interrupts(receive, send),
        Some(Uart::Cadence(uart)) => uart.set_interrupts(receive, send),
        Some(Uart::Imx(uart)) => uart.set_interrupts(receive, send),
        None => {}
    }
}
