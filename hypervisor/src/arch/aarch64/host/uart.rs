//! The board's serial port: a PL011, a UART that is compatible with the 16550, Cadence's, or NXP's.

use heapless::Vec;
use stile_firmware::serial::{Kind, MOST_PORTS, SerialPort};

use super::board::Board;
use super::mmio::Mmio;
use super::pl011::{self, Pl011};
use super::probe::{self, Fault, Probed};
use crate::address_space::Span;
use crate::once::Once;
use crate::uart_16550::{self, LINE_STATUS, Registers, Uart16550};
use crate::uart_cadence::{self, Cadence};
use crate::uart_imx::{self, Imx};
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

/// Takes over the board's first usable port, which becomes its `uart`. Returns the faults of the ports before it. A port that overlaps
/// `taken` memory is not usable.
pub fn setup(board: &mut Board, taken: &[Span]) -> Faults {
    let mut faults = Faults::new();
    for port in &board.ports {
        match open(port, taken) {
            Ok(uart) => {
                UART.set(uart);
                board.uart = Some(port.clone());
                break;
            }
            Err(fault) => {
                let _ = faults.push((port.registers.start, fault));
            }
        }
    }
    faults
}

/// Addresses of ports that can't be used, and the reasons.
pub type Faults = Vec<(u64, Fault), MOST_PORTS>;

/// Maps a port's registers, and takes the port over if it is there.
fn open(port: &SerialPort, taken: &[Span]) -> Result<Uart, Fault> {
    // A register whose read has no side effect.
    let (status, wide) = match port.kind {
        Kind::Pl011 => (pl011::FR, true),
        Kind::Compatible { shift, wide, .. } => (usize::from(LINE_STATUS) << shift, wide),
        Kind::Cadence => (uart_cadence::STATUS, true),
        Kind::Imx => (uart_imx::UTS, true),
    };
    let least = status as u64 + if wide { 4 } else { 1 };
    let registers = probe::map(&port.registers, taken, least, Probed { at: status, wide })?;
    // A bus may answer reads of an absent device with ones.
    let is_present = |present: bool| if present { Ok(()) } else { Err(Fault::Other) };
    Ok(match port.kind {
        Kind::Pl011 => {
            is_present(pl011::is_present(&registers))?;
            Uart::Pl011(Pl011::new(registers))
        }
        Kind::Compatible { shift, wide, fifo } => {
            let window = Window { registers, shift, wide };
            is_present(uart_16550::can_send(&window))?;
            Uart::Compatible(Uart16550::new(window, fifo))
        }
        Kind::Cadence => {
            is_present(registers.read32(status) != u32::MAX)?;
            Uart::Cadence(Cadence::new(registers))
        }
        Kind::Imx => {
            is_present(registers.read32(status) != u32::MAX)?;
            Uart::Imx(Imx::new(registers))
        }
    })
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
