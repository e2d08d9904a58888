//! Memory that vCPUs write while Stile reads or writes it. Each access here is one of the processor's, at any alignment: the compiler does not
//! split, repeat or leave it out, so that what was checked is what is used. Where the processor's own would be atomic, it is (the manual,
//! "Guaranteed Atomic Operations").

use stile_decode::Width;

/// A number at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Anywhere<T>(T);

/// Reads a number.
///
/// # Safety
/// Its bytes are a guest's memory, of which nobody has a reference.
#[inline(always)]
pub unsafe fn load<T: Copy>(from: *const T) -> T {
    // SAFETY: the caller's promise; any alignment will do.
    unsafe { from.cast::<Anywhere<T>>().read_volatile().0 }
}

/// Writes a number.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub unsafe fn store<T: Copy>(to: *mut T, value: T) {
    // SAFETY: the caller's promise; any alignment will do.
    unsafe { to.cast::<Anywhere<T>>().write_volatile(Anywhere(value)) }
}

/// Reads a number of some width.
///
/// # Safety
/// As [`load`].
pub unsafe fn read(from: *const u8, width: Width) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            Width::Byte => load(from).into(),
            Width::Word => load(from.cast::<u16>()).into(),
            Width::Dword => load(from.cast::<u32>()).into(),
            Width::Qword => load(from.cast::<u64>()),
        }
    }
}

/// Writes the low bits of a value, as many as the width says.
///
/// # Safety
/// As [`load`].
pub unsafe fn write(to: *mut u8, width: Width, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match width {
            Width::Byte => store(to, value as u8),
            Width::Word => store(to.cast(), value as u16),
            Width::Dword => store(to.cast(), value as u32),
            Width::Qword => store(to.cast(), value),
        }
    }
}
