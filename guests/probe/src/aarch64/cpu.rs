//! Per-CPU counters of the exception vectors; waiting; masking.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*};

use super::sysreg::{instruction, mrs};

/// Maximum number of CPUs that the probe uses.
pub const CPUS: usize = 64;

/// A CPU's counters, written only by its own vectors. With the MMU off, memory is uncached and unsuitable for
/// exclusive accesses.
#[repr(C, align(64))]
pub struct Slot {
    /// Interrupts taken.
    taken: AtomicU64,
    /// The counter at the start of the last interrupt.
    stamp: AtomicU64,
    /// Synchronous exceptions.
    faults: AtomicU64,
}

/// The counters, by CPU number.
pub static SLOTS: [Slot; CPUS] = [const { Slot { taken: AtomicU64::new(0), stamp: AtomicU64::new(0), faults: AtomicU64::new(0) } }; CPUS];

/// Log2 of a slot's size, for the start code.
pub const SLOT_SHIFT: u32 = size_of::<Slot>().trailing_zeros();
/// Offset of the number of interrupts.
pub const TAKEN: usize = offset_of!(Slot, taken);
/// Offset of the last interrupt's time.
pub const STAMP: usize = offset_of!(Slot, stamp);
/// Offset of the number of synchronous exceptions.
pub const FAULTS: usize = offset_of!(Slot, faults);

/// Number of interrupts that a CPU has taken.
pub fn taken(cpu: usize) -> u64 {
    SLOTS[cpu].taken.load(Acquire)
}

/// Address of that number, for loops in assembly.
pub fn taken_address(cpu: usize) -> u64 {
    SLOTS[cpu].taken.as_ptr() as u64
}

/// The counter when a CPU's last interrupt was taken.
pub fn stamp(cpu: usize) -> u64 {
    SLOTS[cpu].stamp.load(Acquire)
}

/// Number of the first CPU's instructions that were undefined or aborted.
pub fn faults() -> u64 {
    SLOTS[0].faults.load(Acquire)
}

/// The virtual counter.
pub fn now() -> u64 {
    instruction!("isb");
    mrs!("cntvct_el0")
}

/// Reads a counter of the PMU, which is undefined if there is none.
macro_rules! counter {
    ($name:literal) => {{
        let before = faults();
        instruction!("isb");
        let value = mrs!($name);
        (faults() == before).then_some(value)
    }};
}

/// The CPU's cycles.
pub fn cycles() -> Option<u64> {
    counter!("pmccntr_el0")
}

/// The CPU's instructions, if event counter 0 counts them.
pub fn instructions() -> Option<u64> {
    counter!("pmevcntr0_el0")
}

/// Converts microseconds to ticks of the virtual counter.
pub fn ticks(microseconds: u64) -> u64 {
    mrs!("cntfrq_el0") * microseconds / 1_000_000
}

/// Lets the other CPU run for a number of microseconds.
pub fn pause(microseconds: u64) {
    let until = now() + ticks(microseconds);
    while now() < until {
        instruction!("yield");
    }
}

/// Masks interrupts.
pub fn mask() {
    instruction!("msr daifset, #2");
}

/// Unmasks interrupts, and takes pending ones.
pub fn unmask() {
    instruction!("msr daifclr, #2");
    instruction!("isb");
}
