//! Output on a PL011, or on its SBSA subset.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

static BASE: AtomicU64 = AtomicU64::new(0);

/// Data register.
const DR: u64 = 0;
/// Flag register.
pub const FR: u64 = 0x18;
/// FR: the transmit FIFO is full.
const TXFF: u32 = 1 << 5;

/// Reads a device register with a single load, which always has a syndrome.
pub fn read(address: u64) -> u32 {
    let value: u32;
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("ldr {:w}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

/// Writes a device's register with a single store.
pub fn write(address: u64, value: u32) {
    // SAFETY: the address is that of a device register; no Rust object lies there.
    unsafe { core::arch::asm!("str {:w}, [{}]", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
}

/// Sets the UART's address.
pub fn set_base(base: u64) {
    BASE.store(base, Relaxed);
}

struct Uart;

impl Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let base = BASE.load(Relaxed);
        for byte in text.bytes() {
            while read(base + FR) & TXFF != 0 {}
            write(base + DR, u32::from(byte));
        }
        Ok(())
    }
}

/// Prints, if there is a UART.
pub fn print(arguments: fmt::Arguments) {
    if BASE.load(Relaxed) != 0 {
        // Writing to the UART can't fail.
        let _ = Uart.write_fmt(arguments);
    }
}
