//! The time-stamp counter, and this CPU's APIC timer, whose owner `interrupts/deadline.rs` selects.

use core::sync::atomic::{AtomicU64, Ordering};

use super::instructions::{cpuid, in8, out8, rdtsc};
pub use crate::arch::x86_64::virt::timer::*;

static FREQUENCY: AtomicU64 = AtomicU64::new(1_000_000_000);

/// Minimum interval between expiries of a guest's periodic timer, in ticks: with a shorter one the guest would make
/// no progress.
pub const LEAST_PERIOD: u64 = 8192;

/// Current count, common to all CPUs.
#[inline(always)]
pub fn now() -> u64 {
    rdtsc()
}

/// Ticks per second.
pub fn frequency() -> u64 {
    FREQUENCY.load(Ordering::Relaxed)
}

/// Number of measurements.
const TRIES: usize = 3;

/// Determines the counter's frequency from CPUID, or by measurement against the PIT.
pub fn calibrate() {
    // Something else may delay a measurement, such as a hypervisor around this one, but nothing shortens it.
    let measured = || (0..TRIES).map(|_| measured()).min().unwrap_or(0).max(1);
    FREQUENCY.store(declared().unwrap_or_else(measured), Ordering::Relaxed);
}

/// CPUID leaf 0x15 (the manual, "Time Stamp Counter and Nominal Core Crystal Clock Information").
fn declared() -> Option<u64> {
    if cpuid(0, 0).eax < 0x15 {
        return None;
    }
    let leaf = cpuid(0x15, 0);
    let crystal = u64::from(leaf.ecx).checked_mul(leaf.ebx.into())?;
    crystal.checked_div(leaf.eax.into()).filter(|&hz| hz != 0)
}

/// Counts ticks while channel 2 of the 8254 counts down.
fn measured() -> u64 {
    const PIT_HZ: u64 = 1_193_182;
    const COUNT: u16 = 11_932; // 10 ms
    const GATE: u16 = 0x61;
    // SAFETY: channel 2 and its gate drive the speaker, which nothing else uses.
    unsafe {
        // Speaker off, gate closed.
        let gate = in8(GATE) & !0b11;
        out8(GATE, gate);
        // Channel 2, both bytes, mode 0: the output rises at the terminal count.
        out8(0x43, 0b1011_0000);
        out8(0x42, COUNT as u8);
        out8(0x42, (COUNT >> 8) as u8);
        out8(GATE, gate | 1);
        let start = rdtsc();
        while in8(GATE) & 1 << 5 == 0 {}
        let ticks = rdtsc() - start;
        out8(GATE, gate);
        ticks * PIT_HZ / u64::from(COUNT)
    }
}

/// Busy-waits.
pub fn wait_us(us: u64) {
    let start = rdtsc();
    while rdtsc() - start < us * frequency() / 1_000_000 {
        core::hint::spin_loop();
    }
}
