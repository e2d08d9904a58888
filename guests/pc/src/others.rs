//! The other CPUs: started, and given something to do.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::exception;
use crate::lapic::{self as apic, command};
use crate::machine::ticks;

/// The page that they start in.
const PAGE: u32 = 0x10;

/// How many have come up since the last start, and the identifiers of all that ever did, a bit each.
pub static UP: AtomicU32 = AtomicU32::new(0);
/// As above.
pub static SEEN: AtomicU64 = AtomicU64::new(0);
/// Goes up as long as one of them runs.
pub static BEATS: AtomicU64 = AtomicU64::new(0);
/// What they are to do next: a function, or 0 to count beats.
static JOB: AtomicU64 = AtomicU64::new(0);
/// How many jobs were given: the same function may be given twice.
static GIVEN: AtomicU64 = AtomicU64::new(0);
/// How many have done it.
pub static DONE: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    static trampoline: u8;
    static trampoline_end: u8;
    static mut next_stack: u64;
    static mut other_stacks: u8;
}

/// Sends INIT and, at once, startup messages to all others.
pub fn start() {
    let code = &raw const trampoline;
    let length = &raw const trampoline_end as usize - code as usize;
    UP.store(0, Ordering::SeqCst);
    // SAFETY: the page is RAM that nothing else uses, and the others are off or about to be.
    unsafe {
        ((PAGE << 12) as *mut u8).copy_from_nonoverlapping(code, length);
        next_stack = &raw mut other_stacks as u64 + 16384;
    }
    apic::send(0, command::OTHERS | command::INIT | command::ASSERT);
    apic::send(0, command::OTHERS | command::STARTUP | command::ASSERT | PAGE);
}

/// Waits for a condition, for a while. Returns whether it came.
pub fn wait(condition: impl Fn() -> bool) -> bool {
    let start = ticks();
    while !condition() {
        if ticks() - start > 200_000_000 {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// Lets so many ticks go by. A CPU that is shared is given away meanwhile.
pub fn pass(span: u64) {
    let start = ticks();
    while ticks() - start < span {
        core::hint::spin_loop();
    }
}

/// Lets all others do something.
pub fn give(job: fn()) {
    DONE.store(0, Ordering::SeqCst);
    JOB.store(job as usize as u64, Ordering::SeqCst);
    GIVEN.fetch_add(1, Ordering::SeqCst);
}

/// Whoever starts from now on has nothing to do.
pub fn forget() {
    JOB.store(0, Ordering::SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn other_main() -> ! {
    exception::load();
    apic::enable();
    SEEN.fetch_or(1 << (apic::id() & 63), Ordering::SeqCst);
    UP.fetch_add(1, Ordering::SeqCst);
    let mut last = 0;
    loop {
        let given = GIVEN.load(Ordering::SeqCst);
        let job = JOB.load(Ordering::SeqCst);
        if job != 0 && given != last {
            // SAFETY: `give` stored a function of this type.
            let job: fn() = unsafe { core::mem::transmute(job as usize) };
            job();
            DONE.fetch_add(1, Ordering::SeqCst);
        }
        last = given;
        BEATS.fetch_add(1, Ordering::SeqCst);
        core::hint::spin_loop();
    }
}
