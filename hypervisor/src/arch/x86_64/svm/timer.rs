//! This CPU's APIC timer in one-shot mode, for processors without IA32_TSC_DEADLINE: it counts in ticks of its own.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::x86_64::host::instructions::{msr, rdmsr, rdtsc, wrmsr};

/// Mode in the timer's local vector.
pub const MODE: u64 = 0;
/// Whether a guest can set the timer itself.
pub const PASSES_THROUGH: bool = false;
/// Whether the timer can expire before the deadline that was set: it counts up to 32 bits.
pub const MAY_BE_EARLY: bool = true;

const INITIAL_COUNT: u32 = msr::X2APIC + 0x38;
const CURRENT_COUNT: u32 = msr::X2APIC + 0x39;
const DIVIDE: u32 = msr::X2APIC + 0x3e;
/// Divisor 16: the longest interval is a minute at 1 GHz.
const BY_16: u64 = 0b0011;

/// Ticks of the timer for each of the TSC, with 32 fractional bits.
static RATIO: AtomicU64 = AtomicU64::new(0);

/// Reads the deadline: it is never that of a guest.
pub fn deadline() -> u64 {
    0
}

/// Sets the deadline, in ticks of the TSC; 0 disarms the timer. One that is too far away expires early.
#[inline(always)]
pub fn set_deadline(deadline: u64) {
    let count = match deadline {
        0 => 0,
        _ => {
            let ticks = u128::from(deadline.saturating_sub(rdtsc()));
            // Rounded up: not early.
            let count = ((ticks * u128::from(RATIO.load(Ordering::Relaxed))) >> 32) as u64 + 1;
            count.min(u32::MAX.into())
        }
    };
    // SAFETY: boot refuses CPUs without an x2APIC, and the vector is Stile's own.
    unsafe { wrmsr(INITIAL_COUNT, count) };
}

/// Initializes this CPU's timer, and on the first CPU measures its frequency. The local vector is set up. `frequency`: of
/// the TSC.
pub fn setup(frequency: u64, _is_pending: impl Fn() -> bool) {
    // SAFETY: boot refuses CPUs without an x2APIC.
    unsafe { wrmsr(DIVIDE, BY_16) };
    if RATIO.load(Ordering::Relaxed) != 0 {
        return;
    }
    // SAFETY: as above; the timer does not expire while it is measured.
    unsafe { wrmsr(INITIAL_COUNT, u32::MAX.into()) };
    let start = rdtsc();
    // 10 ms.
    while rdtsc() - start < frequency / 100 {}
    // SAFETY: as above; reads have no side effects.
    let counted = u64::from(u32::MAX) - unsafe { rdmsr(CURRENT_COUNT) };
    let ticks = rdtsc() - start;
    RATIO.store(((counted << 32) / ticks.max(1)).max(1), Ordering::Relaxed);
    set_deadline(0);
}

/// Whether an expiry keeps the deadline: the count stays 0.
#[inline]
pub fn keeps_deadline() -> bool {
    false
}

/// Clears a deadline that has passed: nothing to do.
pub fn clear_expired() {}
