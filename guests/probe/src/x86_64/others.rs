//! CPUs besides the first one, all at once: they run, and take the interrupts that are sent to all of them.

use core::sync::atomic::{AtomicU64, Ordering::*};

use super::{apic, cpu, interrupts, measure, second};

/// Maximum number of CPUs that start.
const CPUS: usize = 64;
/// Size of a stack in bytes.
const STACK_SIZE: usize = 1024;

/// CPUs that run.
static STARTED: AtomicU64 = AtomicU64::new(0);

#[repr(C, align(16))]
struct Stacks([[u8; STACK_SIZE]; CPUS]);

static mut STACKS: Stacks = Stacks([[0; STACK_SIZE]; CPUS]);

/// Starts all other CPUs, and returns their number.
pub fn start() -> u64 {
    let others = cpu::count().min(CPUS as u64 + 1) - 1;
    for started in STARTED.load(Acquire)..others {
        let stacks = (&raw mut STACKS).addr();
        second::prepare(stacks + (started as usize + 1) * STACK_SIZE, main);
        apic::start(started + 1, second::PAGE, cpu::pause);
        while STARTED.load(Acquire) == started {
            core::hint::spin_loop();
        }
    }
    others
}

extern "C" fn main() -> ! {
    interrupts::load();
    apic::setup_other();
    cpu::unmask();
    STARTED.fetch_add(1, AcqRel);
    loop {
        measure::no_operation();
    }
}
