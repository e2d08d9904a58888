//! Instructions that Rust has no words for.

use core::arch::asm;

/// Reads a byte from a port.
///
/// # Safety
/// What the device does about it is wanted.
pub unsafe fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: the caller's promise.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) };
    value
}

/// Writes a byte to a port.
///
/// # Safety
/// As [`in8`].
pub unsafe fn out8(port: u16, value: u8) {
    // SAFETY: the caller's promise.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// Writes two bytes to a port.
///
/// # Safety
/// As [`in8`].
pub unsafe fn out16(port: u16, value: u16) {
    // SAFETY: the caller's promise.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags)) };
}
