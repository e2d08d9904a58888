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

/// Number of measurements, if none is exact.
const TRIES: usize = 8;

/// Determines the counter's frequency from CPUID, or by measurement against the PIT.
pub fn calibrate() {
    FREQUENCY.store(declared().unwrap_or_else(measured).max(1), Ordering::Relaxed);
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

const PIT_HZ: u64 = 1_193_182;
/// Port of the PIT's commands.
const COMMAND: u16 = 0x43;
/// Port of channel 2.
const CHANNEL: u16 = 0x42;

/// A count of the PIT's channel 2.
struct Sample {
    count: u16,
    /// The time-stamp counter before it was latched.
    ticks: u64,
    /// Ticks until that was done: an emulator, or a hypervisor around this one, may run something else meanwhile.
    error: u64,
}

impl Sample {
    /// Reads the count, several times, of which the most exact one counts.
    fn take() -> Sample {
        const LATCH: u8 = 0b1000_0000;
        let read = |_| {
            // SAFETY: channel 2 drives the speaker, which nothing else uses.
            unsafe {
                let ticks = rdtsc();
                out8(COMMAND, LATCH);
                let error = rdtsc() - ticks;
                let count = u16::from_le_bytes([in8(CHANNEL), in8(CHANNEL)]);
                Sample { count, ticks, error }
            }
        };
        (0..16).map(read).min_by_key(|sample| sample.error).unwrap_or(Sample { count: 0, ticks: 0, error: u64::MAX })
    }
}

/// Measures the frequency: two machines of the same kind must agree (`DEVIATION` in `snapshot.rs`).
fn measured() -> u64 {
    let mut best = (u64::MAX, 0);
    for _ in 0..TRIES {
        let Some((error, frequency)) = measured_once() else { continue };
        best = best.min((error, frequency));
        if error <= 100 {
            break;
        }
    }
    best.1
}

/// Counts ticks while channel 2 of the 8254 counts down. Returns the greatest error, in millionths, and the frequency; `None` if
/// the channel came to its end before there were two samples.
fn measured_once() -> Option<(u64, u64)> {
    const GATE: u16 = 0x61;
    const OUTPUT: u8 = 1 << 5;
    /// Counts between the samples: 42 ms.
    const SPAN: u16 = 50_000;
    // SAFETY: channel 2 and its gate drive the speaker, which nothing else uses.
    let (start, end) = unsafe {
        // Speaker off, gate closed.
        let gate = in8(GATE) & !0b11;
        out8(GATE, gate);
        // Channel 2, both bytes, mode 0: the output rises at the terminal count.
        out8(COMMAND, 0b1011_0000);
        out8(CHANNEL, 0xff);
        out8(CHANNEL, 0xff);
        out8(GATE, gate | 1);
        let start = Sample::take();
        let mut end = None;
        while end.as_ref().is_none_or(|end: &Sample| start.count.saturating_sub(end.count) < SPAN) {
            let next = Sample::take();
            if in8(GATE) & OUTPUT != 0 {
                break;
            }
            end = Some(next);
        }
        out8(GATE, gate);
        (start, end?)
    };
    let (counts, ticks) = (u64::from(start.count.checked_sub(end.count)?), end.ticks.checked_sub(start.ticks)?);
    let error = (start.error + end.error).saturating_mul(1_000_000) / ticks.max(1);
    Some((error, (u128::from(ticks) * u128::from(PIT_HZ)).checked_div(counts.into())? as u64))
}

/// Busy-waits.
pub fn wait_us(us: u64) {
    let start = rdtsc();
    while rdtsc() - start < us * frequency() / 1_000_000 {
        core::hint::spin_loop();
    }
}
