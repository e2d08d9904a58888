//! Memory of the tests: of a device, and RAM for comparison.

use core::array::from_fn;

/// The device memory.
pub const DEVICE: u64 = 0xff00_0000;

#[repr(C, align(8192))]
struct Ram([u8; 16384]);
static mut RAM: Ram = Ram([0; 16384]);

/// RAM used for comparison.
pub fn ram() -> u64 {
    &raw const RAM as u64
}

/// Iterates over memory at two addresses: offsets, and the number of bytes per access, as each access to a
/// device exits.
fn parts(a: u64, b: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut next = 0;
    core::iter::from_fn(move || {
        (next < bytes).then(|| {
            let n = next;
            let size = if ((a + n) | (b + n)).is_multiple_of(8) && bytes - n >= 8 { 8 } else { 1 };
            next += size;
            (n, size)
        })
    })
}

/// Fills memory with a pattern.
pub fn fill(at: u64, bytes: u64) {
    let byte = |n: u64| (n * 37 + 11) as u8;
    for (n, size) in parts(at, at, bytes) {
        // SAFETY: callers pass memory of the test device or RAM of the tests, and `parts` aligns each access.
        unsafe {
            match size {
                8 => ((at + n) as *mut u64).write_volatile(u64::from_le_bytes(from_fn(|k| byte(n + k as u64)))),
                _ => ((at + n) as *mut u8).write_volatile(byte(n)),
            }
        }
    }
}

/// Whether memory is equal at both addresses.
pub fn same(a: u64, b: u64, bytes: u64) -> bool {
    // SAFETY: callers pass memory of the test device or RAM of the tests, and `parts` aligns each access.
    let read = |at: u64, size| unsafe {
        match size {
            8 => (at as *const u64).read_volatile(),
            _ => (at as *const u8).read_volatile().into(),
        }
    };
    parts(a, b, bytes).all(|(n, size)| read(a + n, size) == read(b + n, size))
}
