//! Port I/O.

use core::arch::asm;

/// Reads a byte from a port of the probe's own devices; no Rust memory is affected.
pub fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: reads of the ports used by the probe have no effect on memory.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) };
    value
}

/// Writes a byte to a port.
pub fn out8(port: u16, value: u8) {
    // SAFETY: writes to the ports used by the probe have no effect on memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}
