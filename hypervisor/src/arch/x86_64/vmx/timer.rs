//! This CPU's APIC timer in TSC-deadline mode.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch::x86_64::host::instructions::{msr, rdmsr, rdtsc, wrmsr};

/// Mode in the timer's local vector.
pub const MODE: u64 = 0b10 << 17;
/// Whether a guest can set the timer itself.
pub const PASSES_THROUGH: bool = true;
/// Whether the timer can expire before the deadline that was set.
pub const MAY_BE_EARLY: bool = false;

/// Reads IA32_TSC_DEADLINE.
pub fn deadline() -> u64 {
    // SAFETY: boot refuses CPUs without the register, and reads have no side effects.
    unsafe { rdmsr(msr::IA32_TSC_DEADLINE) }
}

/// Writes IA32_TSC_DEADLINE; 0 disarms the timer.
#[inline(always)]
pub fn set_deadline(deadline: u64) {
    // SAFETY: boot refuses CPUs without the register, and the vector is Stile's own.
    unsafe { wrmsr(msr::IA32_TSC_DEADLINE, deadline) };
}

/// IA32_TSC_DEADLINE keeps its value at expiry. By the manual it is cleared; Bochs 3.0 keeps it.
static KEEPS_DEADLINE: AtomicBool = AtomicBool::new(false);

/// Tests whether an expiry clears IA32_TSC_DEADLINE. The local vector is set up and interrupts are masked: a timer
/// interrupt is left pending. `is_pending`: whether it is.
pub fn setup(frequency: u64, is_pending: impl Fn() -> bool) {
    set_deadline(1);
    let start = rdtsc();
    while !is_pending() && rdtsc() - start < frequency / 1000 {}
    KEEPS_DEADLINE.store(deadline() != 0, Ordering::Relaxed);
    set_deadline(0);
}

/// Whether an expiry keeps IA32_TSC_DEADLINE, so that [`clear_expired`] must be called once its interrupt was taken.
#[inline]
pub fn keeps_deadline() -> bool {
    KEEPS_DEADLINE.load(Ordering::Relaxed)
}

/// Clears IA32_TSC_DEADLINE if it has passed: its interrupt was taken. A newly armed one is kept.
pub fn clear_expired() {
    if keeps_deadline() && deadline() <= rdtsc() {
        set_deadline(0);
    }
}
