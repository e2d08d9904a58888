//! Exceptions, caught and reported, and interrupts, which are counted.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::machine;

/// From one stub of `exceptions` in `exception.s` to the next.
const STUB: u64 = 16;

#[unsafe(no_mangle)]
static RESUME: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static LAST_VECTOR: AtomicU64 = AtomicU64::new(NONE);
#[unsafe(no_mangle)]
static LAST_CODE: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static LAST_FLAGS: AtomicU64 = AtomicU64::new(0);

const NONE: u64 = u64::MAX;

static mut IDT: [[u64; 2]; 256] = [[0; 2]; 256];

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

unsafe extern "C" {
    static exceptions: u8;
}

/// Descriptor of an interrupt gate.
const fn gate(handler: u64) -> [u64; 2] {
    [handler & 0xffff | 0x08 << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48, handler >> 32]
}

/// Routes exceptions to `exception.s`, and sets the machine's pace. Each program calls this before its first wait.
pub fn setup() {
    machine::find_pace();
    let table = &raw mut IDT;
    for vector in 0..256 {
        let handler = &raw const exceptions as u64 + vector * STUB;
        // SAFETY: there is one CPU, and nothing else accesses the table.
        unsafe { (*table)[vector as usize] = gate(handler) };
    }
    load();
}

/// Routes two of the first 16 vectors of this CPU to handlers at addresses, and the others nowhere.
pub fn load_two(handlers: [(usize, u64); 2]) {
    static mut TWO: [[u64; 2]; 16] = [[0; 2]; 16];
    let table = &raw mut TWO;
    for (vector, handler) in handlers {
        // SAFETY: one CPU at a time calls this.
        unsafe { (*table)[vector & 15] = gate(handler) };
    }
    let pointer = Pointer { limit: 16 * 16 - 1, base: table as u64 };
    // SAFETY: the table is complete, and never freed.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &pointer, options(nostack)) };
}

/// Installs the handlers on this CPU.
pub fn load() {
    let pointer = Pointer { limit: 256 * 16 - 1, base: &raw const IDT as u64 };
    // SAFETY: the table is complete, and never freed.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &pointer, options(nostack)) };
}

/// Executes instructions that may raise an exception; the first one skips the rest. Returns its vector and
/// error code.
#[macro_export]
macro_rules! catch {
    ($code:literal $(, $register:tt = $value:expr)*) => {{
        $crate::exception::run(|| {
            // SAFETY: the instructions' effects are tested; after an exception, execution continues after
            // them.
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
pub use catch;

/// See [`catch`]. Returns the vector and error code of the exception.
pub fn run(code: impl FnOnce()) -> Option<(u64, u64)> {
    LAST_VECTOR.store(NONE, Ordering::Relaxed);
    code();
    RESUME.store(0, Ordering::Relaxed);
    let vector = LAST_VECTOR.load(Ordering::Relaxed);
    (vector != NONE).then(|| (vector, LAST_CODE.load(Ordering::Relaxed)))
}

/// RFLAGS as the last exception pushed it.
pub fn last_flags() -> u64 {
    LAST_FLAGS.load(Ordering::Relaxed)
}

/// Number of interrupts by vector; and below, the interrupted address.
pub static COUNTS: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// Addresses of the instructions that took exceptions, by vector.
pub static PLACES: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// An additional handler of an interrupt; with 0 it is only ended.
pub static HANDLERS: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

/// Exceptions handled like interrupts, without an end of interrupt.
const NOT_ENDED: u64 = 32;

/// Number of interrupts since the last call.
pub fn take(vector: u8) -> u64 {
    COUNTS[usize::from(vector)].swap(0, Ordering::SeqCst)
}

/// Sets the handler of an interrupt, which must end it, or the default.
pub fn handle(vector: u8, handler: Option<fn(u64)>) {
    COUNTS[usize::from(vector)].store(0, Ordering::SeqCst);
    HANDLERS[usize::from(vector)].store(handler.map_or(0, |handler| handler as usize as u64), Ordering::SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn interrupt(vector: u64, place: u64) {
    let index = (vector & 0xff) as usize;
    PLACES[index].store(place, Ordering::SeqCst);
    COUNTS[index].fetch_add(1, Ordering::SeqCst);
    match HANDLERS[index].load(Ordering::SeqCst) {
        0 if vector < NOT_ENDED => {}
        0 => crate::lapic::end(),
        handler => {
            // SAFETY: `handle` stored a function of this type.
            let handler: fn(u64) = unsafe { core::mem::transmute(handler as usize) };
            handler(place);
        }
    }
}
