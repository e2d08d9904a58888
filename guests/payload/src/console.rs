//! Line-buffered text output.

use core::fmt::{self, Write};

use crate::lock::SpinLock;
use crate::uart;

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                uart::put(b'\r');
            }
            uart::put(byte);
        }
        Ok(())
    }
}

static CONSOLE: SpinLock<Console> = SpinLock::new(Console);

/// Prints; the output of one call is not interleaved.
pub fn write(arguments: fmt::Arguments) {
    // Writing to the UART can't fail.
    let _ = CONSOLE.lock().write_fmt(arguments);
}

/// Runs `act` on the UART with exclusive access, and reinitializes the UART for output afterwards.
pub fn exclusively(act: impl FnOnce()) {
    let _console = CONSOLE.lock();
    act();
    uart::init();
}

/// Lets the caller print even if another CPU, or the interrupted code, holds the console.
pub fn seize() {
    CONSOLE.force_open();
}

/// Prints text.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => { $crate::console::write(format_args!($($argument)*)) };
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => { $crate::console::write(format_args!("{}\n", format_args!($($argument)*))) };
}
