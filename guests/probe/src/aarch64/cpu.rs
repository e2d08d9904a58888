//! What the exception vectors count, for each CPU; waiting; masking.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*};

use super::sysreg::{instruction, mrs};

/// CPUs that the probe uses at most.
pub const CPUS: usize = 2;

/// A CPU's account, which only its own vectors write. With the MMU off, memory is neither cached nor fit for exclusive accesses.
#[repr(C, align(64))]
pub struct Slot {
    /// Interrupts taken.
    taken: AtomicU64,
    /// The counter at the start of the last interrupt.
    stamp: AtomicU64,
    /// Synchronous exceptions.
    faults: AtomicU64,
}

/// The accounts, by number of the CPU.
pub static SLOTS: [Slot; CPUS] = [const { Slot { taken: AtomicU64::new(0), stamp: AtomicU64::new(0), faults: AtomicU64::new(0) } }; CPUS];

/// Log2 of a slot's size, for the start code.
pub const SLOT_SHIFT: u32 = size_of::<Slot>().trailing_zeros();
/// Offset of the number of interrupts.
pub const TAKEN: usize = offset_of!(Slot, taken);
/// Offset of the last interrupt's time.
pub const STAMP: usize = offset_of!(Slot, stamp);
/// Offset of the number of synchronous exceptions.
pub const FAULTS: usize = offset_of!(Slot, faults);

/// How many interrupts a CPU has taken.
pub fn taken(cpu: usize) -> u64 {
    SLOTS[cpu].taken.load(Acquire)
}

/// Where that number is, for loops in assembly.
pub fn taken_address(cpu: usize) -> u64 {
    SLOTS[cpu].taken.as_ptr() as u64
}

/// The counter when a CPU's last interrupt was taken.
pub fn stamp(cpu: usize) -> u64 {
    SLOTS[cpu].stamp.load(Acquire)
}

/// How many instructions of the first CPU were undefined, or reached for nothing.
pub fn faults() -> u64 {
    SLOTS[0].faults.load(Acquire)
}

/// The virtual counter.
pub fn now() -> u64 {
    instruction!("isb");
    mrs!("cntvct_el0")
}

/// The virtual counter's ticks in so many microseconds.
pub fn ticks(microseconds: u64) -> u64 {
    mrs!("cntfrq_el0") * microseconds / 1_000_000
}

/// Lets the other CPU run for so many microseconds.
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

/// Unmasks interrupts, and takes those that are pending.
pub fn unmask() {
    instruction!("msr daifclr, #2");
    instruction!("isb");
}
