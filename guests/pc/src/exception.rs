//! Exceptions: caught, and told.

use core::sync::atomic::{AtomicU64, Ordering};

/// From one stub of `exceptions` in `exception.s` to the next.
const STUB: u64 = 16;

#[unsafe(no_mangle)]
static RESUME: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static LAST_VECTOR: AtomicU64 = AtomicU64::new(NONE);
#[unsafe(no_mangle)]
static LAST_CODE: AtomicU64 = AtomicU64::new(0);

const NONE: u64 = u64::MAX;

static mut IDT: [[u64; 2]; 32] = [[0; 2]; 32];

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

unsafe extern "C" {
    static exceptions: u8;
}

/// Makes the exceptions come to `exception.s`.
pub fn setup() {
    let table = &raw mut IDT;
    for vector in 0..32 {
        let handler = &raw const exceptions as u64 + vector * STUB;
        let low = handler & 0xffff | 0x08 << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
        // SAFETY: there is one CPU, and nothing else touches the table.
        unsafe { (*table)[vector as usize] = [low, handler >> 32] };
    }
    let pointer = Pointer { limit: 32 * 16 - 1, base: table as u64 };
    // SAFETY: the table is complete, and stays.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &pointer, options(nostack)) };
}

/// Runs instructions that may take an exception, of which the first one skips the rest. Returns its vector and error code.
macro_rules! catch {
    ($code:literal $(, $register:tt = $value:expr)*) => {{
        $crate::exception::run(|| {
            // SAFETY: what the instructions do is what is tested; an exception goes on after them.
            unsafe {
                core::arch::asm!(
                    "lea r11, [rip + 97f]",
                    "mov [RESUME], r11",
                    $code,
                    "97:",
                    $(in($register) $value,)*
                    clobber_abi("C"),
                );
            }
        })
    }};
}
pub(crate) use catch;

/// See [`catch`]. Returns the vector and error code of the exception that came.
pub fn run(code: impl FnOnce()) -> Option<(u64, u64)> {
    LAST_VECTOR.store(NONE, Ordering::Relaxed);
    code();
    RESUME.store(0, Ordering::Relaxed);
    let vector = LAST_VECTOR.load(Ordering::Relaxed);
    (vector != NONE).then(|| (vector, LAST_CODE.load(Ordering::Relaxed)))
}
