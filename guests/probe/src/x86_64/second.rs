//! The second CPU: it runs, and takes interrupts.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use super::platform::Platform;
use super::{apic, cpu, interrupts, measure, paravirtual_eoi};

/// Start address of the second CPU, in real mode: a page of the first MiB that holds nothing else.
const TRAMPOLINE: usize = 0x1_0000;
/// Its number, for SIPI.
pub const PAGE: u8 = (TRAMPOLINE >> 12) as u8;
/// Size of the stack in bytes.
const STACK_SIZE: usize = 16 * 1024;
/// Microseconds in which it has started, if there is one: in an L2, a thread of a busy L1 starts it.
const START: u64 = 100_000;
/// Minimum number of polls before it counts as missing: where ticks are real time, [`START`] is a few milliseconds only.
const POLLS: u64 = 20_000_000;

/// The role of the second CPU. It is reset for another one, so that no loop of a role has to look for it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Role {
    /// Runs, and takes interrupts.
    Spin,
    /// Waits for interrupts, and takes them.
    Sleep,
    /// Waits for an interrupt, takes it, and sends one back.
    Reply,
    /// Runs, takes interrupts, and sends one back for each.
    Echo,
}

static RUNS: AtomicBool = AtomicBool::new(false);
/// The role, from the next start on.
static ROLE: AtomicU64 = AtomicU64::new(Role::Spin as u64);

#[repr(C, align(16))]
struct Stack([u8; STACK_SIZE]);

static mut STACK: Stack = Stack([0; STACK_SIZE]);

/// The upper end of the next CPU's stack, and its main program.
static NEXT_STACK: AtomicUsize = AtomicUsize::new(0);
static NEXT_MAIN: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

core::arch::global_asm!(include_str!("second.s"), stack = sym NEXT_STACK, main = sym NEXT_MAIN);

/// Prepares the start of a CPU at [`PAGE`], with a stack that ends at an address, and a main program.
pub fn prepare(stack_end: usize, main: extern "C" fn() -> !) {
    unsafe extern "C" {
        static trampoline: u8;
        static trampoline_end: u8;
    }
    // The mode requested for this CPU.
    apic::need_x2apic();
    let (from, end) = (&raw const trampoline, &raw const trampoline_end);
    // SAFETY: nothing else is at that place, which is RAM on every PC.
    unsafe { core::ptr::copy_nonoverlapping(from, TRAMPOLINE as *mut u8, end as usize - from as usize) };
    NEXT_STACK.store(stack_end, Release);
    NEXT_MAIN.store(main as *mut (), Release);
}

/// Starts the second CPU, and says whether there is one.
pub fn start(_platform: &Platform) -> bool {
    prepare((&raw mut STACK).addr() + STACK_SIZE, main);
    RUNS.store(false, Release);
    apic::start(1, PAGE, cpu::pause);
    let until = cpu::now() + cpu::ticks(START);
    let mut polls = 0;
    while !RUNS.load(Acquire) {
        polls += 1;
        if polls > POLLS && cpu::now() > until {
            return false;
        }
    }
    true
}

/// Assigns a role to the second CPU, and waits until it has started.
pub fn play(platform: &Platform, role: Role) {
    if ROLE.swap(role as u64, Release) != role as u64 {
        start(platform);
    }
}

extern "C" fn main() -> ! {
    interrupts::load();
    apic::setup_other();
    paravirtual_eoi::setup_cpu(1);
    let role = ROLE.load(Acquire);
    if role == Role::Sleep as u64 || role == Role::Reply as u64 {
        RUNS.store(true, Release);
        loop {
            let before = cpu::taken(1);
            cpu::halt();
            if role == Role::Reply as u64 && cpu::taken(1) != before {
                apic::interrupt(0, interrupts::FIRST);
            }
        }
    }
    cpu::unmask();
    RUNS.store(true, Release);
    if role == Role::Echo as u64 {
        echo();
    }
    loop {
        measure::no_operation();
    }
}

/// Answers each interrupt.
fn echo() -> ! {
    let mut before = cpu::taken(1);
    loop {
        let taken = cpu::taken(1);
        if taken != before {
            before = taken;
            apic::interrupt(0, interrupts::FIRST);
        }
        measure::no_operation();
    }
}
