//! Accesses to memory that vCPUs may write concurrently. Each is one access of the processor, at any alignment, which
//! the compiler does not split, repeat or omit: the checked value is the used one. Accesses are atomic where the
//! processor's own are ("Guaranteed Atomic Operations").

use stile_x86_decode::Width;

/// A number at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Anywhere<T>(T);

/// Reads a number.
///
/// # Safety
/// The bytes are guest memory, to which no reference exists.
#[inline(always)]
pub unsafe fn load<T: Copy>(from: *const T) -> T {
    // SAFETY: the caller guarantees the address; the access needs no alignment.
    unsafe { from.cast::<Anywhere<T>>().read_volatile().0 }
}

/// Writes a number.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub unsafe fn store<T: Copy>(to: *mut T, value: T) {
    // SAFETY: the caller guarantees the address; the access needs no alignment.
    unsafe { to.cast::<Anywhere<T>>().write_volatile(Anywhere(value)) }
}

/// Reads a number of the given width.
///
/// # Safety
/// As [`load`].
pub unsafe fn read(from: *const u8, width: Width) -> u64 {
    // SAFETY: by the contract of `load`, which is also this function's, the address is in mapped guest RAM.
    unsafe {
        match width {
            Width::Byte => load(from).into(),
            Width::Word => load(from.cast::<u16>()).into(),
            Width::Dword => load(from.cast::<u32>()).into(),
            Width::Qword => load(from.cast::<u64>()),
        }
    }
}

/// Writes the low bits of a value, as given by the width.
///
/// # Safety
/// As [`load`].
pub unsafe fn write(to: *mut u8, width: Width, value: u64) {
    // SAFETY: by the contract of `load`, which is also this function's, the address is in mapped guest RAM.
    unsafe {
        match width {
            Width::Byte => store(to, value as u8),
            Width::Word => store(to.cast(), value as u16),
            Width::Dword => store(to.cast(), value as u32),
            Width::Qword => store(to.cast(), value),
        }
    }
}
