//! First serial port of a PC, a 16550, under the console.

use super::instructions::{in8, out8};
use crate::once::Once;
use crate::uart_16550::{DATA, INTERRUPT_ENABLE, LINE_CONTROL, LINE_STATUS, Registers, Uart16550};

const BASE: u16 = 0x3f8;
/// ISA interrupt of the first serial port.
pub const ISA_IRQ: u8 = 4;

const SCRATCH: u8 = 7;
/// LINE_CONTROL.DLAB: the first two registers are the divisor.
const DIVISOR: u8 = 1 << 7;
/// LINE_STATUS.TEMT.
const TRANSMITTED: u8 = 1 << 6;
/// Capacity of the transmit FIFO, in bytes.
const FIFO: u8 = 16;

/// The port's registers.
struct Ports;

impl Registers for Ports {
    fn read(&self, register: u8) -> u8 {
        // SAFETY: the port is this UART's, which only the console uses.
        unsafe { in8(BASE + u16::from(register)) }
    }

    fn write(&self, register: u8, value: u8) {
        // SAFETY: the port is this UART's, which only the console uses.
        unsafe { out8(BASE + u16::from(register), value) }
    }
}

static UART: Once<Uart16550<Ports>> = Once::new();

/// Takes over the UART if there is one: 115,200 baud, 8N1, FIFOs enabled, interrupts disabled.
pub fn setup() {
    Ports.write(SCRATCH, 0x5a);
    if Ports.read(SCRATCH) != 0x5a {
        return;
    }
    Ports.write(INTERRUPT_ENABLE, 0);
    Ports.write(LINE_CONTROL, DIVISOR);
    Ports.write(DATA, 1);
    Ports.write(INTERRUPT_ENABLE, 0);
    UART.set(Uart16550::new(Ports, FIFO));
}

/// Sends a byte if the FIFO has room. Without a UART it is lost.
pub fn try_send(byte: u8) -> bool {
    UART.try_get().is_none_or(|uart| uart.try_send(byte))
}

/// Waits until the transmitter is empty.
pub fn finish() {
    while UART.try_get().is_some() && Ports.read(LINE_STATUS) & TRANSMITTED == 0 {
        core::hint::spin_loop();
    }
}

/// Returns a received byte.
pub fn try_receive() -> Option<u8> {
    UART.try_get()?.try_receive()
}

/// Clears the interrupt, and selects the next ones.
pub fn set_interrupts(receive: bool, send: bool) {
    if let Some(uart) = UART.try_get() {
        uart.set_interrupts(receive, send);
    }
}
