//! Output on the first serial port, a 16550, or on Xen's console.

use core::fmt::{self, Write};

use super::ports::{in8, out8};
use super::xen;

/// Its transmit register.
const DATA: u16 = 0x3f8;
const DIVISOR_HIGH: u16 = DATA + 1;
const LINE_CONTROL: u16 = DATA + 3;
/// Its line-status register.
pub const LINE_STATUS: u16 = DATA + 5;
/// The transmit register is empty.
const EMPTY: u8 = 1 << 5;
/// The transmitter is empty.
const SENT: u8 = 1 << 6;

/// Configures 115,200 baud, eight data bits.
pub fn setup() {
    const DIVISOR: u8 = 1 << 7;
    const EIGHT_BITS: u8 = 0b11;
    out8(LINE_CONTROL, DIVISOR | EIGHT_BITS);
    out8(DATA, 1);
    out8(DIVISOR_HIGH, 0);
    out8(LINE_CONTROL, EIGHT_BITS);
}

/// Waits until the transmitter is empty.
pub fn drain() {
    while in8(LINE_STATUS) & SENT == 0 {}
}

struct Uart;

impl Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if xen::is_found() {
            xen::print(text);
            return Ok(());
        }
        for byte in text.bytes() {
            while in8(LINE_STATUS) & EMPTY == 0 {}
            out8(DATA, byte);
        }
        Ok(())
    }
}

/// Prints.
pub fn print(arguments: fmt::Arguments) {
    // Writing to the UART can't fail.
    let _ = Uart.write_fmt(arguments);
}
