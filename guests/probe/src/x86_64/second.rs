//! The second CPU: it runs, and takes interrupts.

use core::sync::atomic::{AtomicBool, Ordering::*};

use super::platform::Platform;
use super::{apic, cpu, interrupts};

/// Where it begins, in real mode: a page of the first MiB that holds nothing else.
const TRAMPOLINE: usize = 0x1_0000;
/// Size of the stack in bytes.
const STACK_SIZE: usize = 16 * 1024;
/// Microseconds in which it has started, if there is one: in an L2, a thread of a busy L1 starts it.
const START: u64 = 100_000;

static RUNS: AtomicBool = AtomicBool::new(false);

#[repr(C, align(16))]
struct Stack([u8; STACK_SIZE]);

static mut STACK: Stack = Stack([0; STACK_SIZE]);

core::arch::global_asm!(include_str!("second.s"), stack = sym STACK, stack_size = const STACK_SIZE, main = sym main);

/// Starts the second CPU, and says whether there is one.
pub fn start(_platform: &Platform) -> bool {
    unsafe extern "C" {
        static trampoline: u8;
        static trampoline_end: u8;
    }
    // The mode requested for this CPU.
    apic::need_x2apic();
    let (from, end) = (&raw const trampoline, &raw const trampoline_end);
    // SAFETY: nothing else is at that place, which is RAM on every PC.
    unsafe { core::ptr::copy_nonoverlapping(from, TRAMPOLINE as *mut u8, end as usize - from as usize) };
    apic::start_second((TRAMPOLINE >> 12) as u8, cpu::pause);
    let until = cpu::now() + cpu::ticks(START);
    while !RUNS.load(Acquire) {
        if cpu::now() > until {
            return false;
        }
    }
    true
}

extern "C" fn main() -> ! {
    interrupts::load();
    apic::setup_second();
    cpu::unmask();
    RUNS.store(true, Release);
    loop {
        // A loop without PAUSE, on which some hypervisors take the CPU away.
        // SAFETY: NOP changes no register and no memory.
        unsafe { core::arch::asm!("nop", options(nomem, nostack, preserves_flags)) };
    }
}
