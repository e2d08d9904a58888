//! The other CPUs: started, and given something to do.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::exception;
use crate::lapic::{self as apic, command};
use crate::machine::{pace, ticks};

/// The page that they start in.
pub const PAGE: u32 = 0x10;

/// Number of CPUs started since the last start, and a bit mask of all identifiers ever seen.
pub static UP: AtomicU32 = AtomicU32::new(0);
/// Bit mask of all identifiers ever seen.
pub static SEEN: AtomicU64 = AtomicU64::new(0);
/// Incremented as long as one of them runs.
pub static BEATS: AtomicU64 = AtomicU64::new(0);
/// Their next function, or 0 to count beats.
static JOB: AtomicU64 = AtomicU64::new(0);
/// Number of jobs given: the same function may be given twice.
static GIVEN: AtomicU64 = AtomicU64::new(0);
/// Number of CPUs that have finished it.
pub static DONE: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    static trampoline: u8;
    static trampoline_end: u8;
    static mut next_stack: u64;
    static first_stack_top: u8;
}

/// Sends INIT and, immediately, SIPI to all others.
pub fn start() {
    prepare();
    apic::send(0, command::OTHERS | command::INIT | command::ASSERT);
    apic::send(0, command::OTHERS | command::STARTUP | command::ASSERT | PAGE);
}

/// Makes the page that they start in, and their stacks, ready.
pub fn prepare() {
    let code = &raw const trampoline;
    let length = &raw const trampoline_end as usize - code as usize;
    UP.store(0, Ordering::SeqCst);
    // SAFETY: the page is otherwise unused RAM, and the others are off or about to be.
    unsafe {
        ((PAGE << 12) as *mut u8).copy_from_nonoverlapping(code, length);
        next_stack = &raw const first_stack_top as u64;
    }
}

/// Ticks that [`wait`] waits, by [`pace`], and how many it counts at most between two checks of the condition.
const LIMIT: u64 = 200_000_000;
const STEP: u64 = LIMIT / 1000;

/// Waits for a condition, for a limited time. Returns whether it was met. A jump of the counter, as when this VM moves
/// to another machine, or while others have the CPU, counts as a step. A counter that goes back ends the wait as a failure.
pub fn wait(condition: impl Fn() -> bool) -> bool {
    let (mut last, mut passed) = (ticks(), 0);
    while !condition() {
        let now = ticks();
        let Some(step) = now.checked_sub(last) else { return false };
        passed += step.min(STEP * pace());
        last = now;
        if passed > LIMIT * pace() {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// Waits for a number of ticks. A shared CPU is yielded meanwhile.
pub fn pass(span: u64) {
    let start = ticks();
    while ticks() - start < span {
        core::hint::spin_loop();
    }
}

/// Gives all others a job.
pub fn give(job: fn()) {
    DONE.store(0, Ordering::SeqCst);
    JOB.store(job as usize as u64, Ordering::SeqCst);
    GIVEN.fetch_add(1, Ordering::SeqCst);
}

/// CPUs started from now on have no job.
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
