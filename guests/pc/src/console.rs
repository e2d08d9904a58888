//! The first serial port.

use core::fmt;

use crate::machine::{in8, out8};

const BASE: u16 = 0x3f8;
const LINE_STATUS: u16 = BASE + 5;
const EMPTY: u8 = 1 << 5;

/// The serial port, to be written to.
pub struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the port is a UART's, and only this function writes to it.
            unsafe {
                while in8(LINE_STATUS) & EMPTY == 0 {}
                out8(BASE, byte);
            }
        }
        Ok(())
    }
}

/// Eight bits, no parity: a UART's reset value is shorter.
pub fn setup() {
    // SAFETY: sets COM1's line control, which accesses no memory; only the console uses that UART.
    unsafe { out8(BASE + 3, 3) };
}

/// Waits until everything is sent: bytes on their way are lost at a power-off.
pub fn drain() {
    const IDLE: u8 = 1 << 6;
    // SAFETY: reading the line status changes nothing.
    unsafe { while in8(LINE_STATUS) & IDLE == 0 {} }
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {{
        use core::fmt::Write as _;
        let _ = writeln!($crate::console::Console, $($argument)*);
    }};
}
pub use println;
