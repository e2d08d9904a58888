//! The time-stamp counter, and this CPU's APIC timer, whose owner `interrupts/deadline.rs` selects.

use core::sync::atomic::{AtomicU64, Ordering};

use super::instructions::{cpuid, in8, in32, out8, rdtsc};
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

/// Determines the counter's frequency from CPUID, or by measurement against the PIT, or against the ACPI timer at a port.
///
/// # Errors
/// A description: there is no clock.
pub fn calibrate(acpi_timer: Option<u16>) -> Result<(), &'static str> {
    let measured = || measured(measured_once).or_else(|| measured(|| measured_by_acpi(acpi_timer?)));
    let frequency = declared().or_else(measured).ok_or("it finds no clock by which to measure the speed of the time-stamp counter")?;
    FREQUENCY.store(frequency, Ordering::Relaxed);
    Ok(())
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

/// Number of samples in which a clock that counts has counted.
const SAMPLES: usize = 4096;

/// A count of a clock.
struct Sample {
    count: u32,
    /// The time-stamp counter before it was latched.
    ticks: u64,
    /// Ticks until that was done: an emulator, or a hypervisor around this one, may run something else meanwhile.
    error: u64,
}

impl Sample {
    /// Reads the count, several times, of which the most exact one counts. `read` gets the result of `latch`.
    fn take<T>(latch: impl Fn() -> T, read: impl Fn(T) -> u32) -> Sample {
        let one = |_| {
            let ticks = rdtsc();
            let latched = latch();
            let error = rdtsc() - ticks;
            Sample { count: read(latched), ticks, error }
        };
        (0..16).map(one).min_by_key(|sample| sample.error).unwrap_or(Sample { count: 0, ticks: 0, error: u64::MAX })
    }

    /// Reads the count of the PIT's channel 2.
    fn of_pit() -> Sample {
        const LATCH: u8 = 0b1000_0000;
        // SAFETY: channel 2 drives the speaker, which nothing else uses.
        let latch = || unsafe { out8(COMMAND, LATCH) };
        // SAFETY: as above.
        Sample::take(latch, |()| unsafe { u16::from_le_bytes([in8(CHANNEL), in8(CHANNEL)]) }.into())
    }

    /// The greatest error between this sample and a later one, in millionths, and the frequency of the time-stamp counter, if the clock has
    /// counted `counts` at `hz` in between.
    fn until(&self, end: &Sample, counts: u32, hz: u64) -> Option<(u64, u64)> {
        let ticks = end.ticks.checked_sub(self.ticks)?;
        let error = (self.error + end.error).saturating_mul(1_000_000) / ticks.max(1);
        Some((error, (u128::from(ticks) * u128::from(hz)).checked_div(counts.into())? as u64))
    }
}

/// The most exact of several measurements: two machines of the same kind must agree (`DEVIATION` in `snapshot.rs`).
fn measured(once: impl Fn() -> Option<(u64, u64)>) -> Option<u64> {
    let mut best = (u64::MAX, 0);
    for _ in 0..TRIES {
        let Some((error, frequency)) = once() else { continue };
        best = best.min((error, frequency));
        if error <= 100 {
            break;
        }
    }
    Some(best.1).filter(|&frequency| frequency != 0)
}

/// Takes samples until the clock has counted `span`, or stands still, or its count is over. Returns the last one before that, if there is any.
fn last(sample: impl Fn() -> Sample, counted: impl Fn(&Sample) -> u32, span: u32, is_over: impl Fn() -> bool) -> Option<Sample> {
    let (mut end, mut same): (Option<Sample>, _) = (None, 0);
    while same < SAMPLES && end.as_ref().is_none_or(|end| counted(end) < span) {
        let next = sample();
        if is_over() {
            break;
        }
        same = if end.is_some_and(|end| end.count == next.count) { same + 1 } else { 0 };
        end = Some(next);
    }
    end
}

/// Counts ticks while channel 2 of the 8254 counts down. `None` if there is none, it stands still, or it came to its end before there were two
/// samples. Otherwise as [`Sample::until`].
fn measured_once() -> Option<(u64, u64)> {
    const GATE: u16 = 0x61;
    const OUTPUT: u8 = 1 << 5;
    /// Counts between the samples: 42 ms.
    const SPAN: u32 = 50_000;
    // SAFETY: channel 2 and its gate drive the speaker, which nothing else uses.
    let gate = unsafe { in8(GATE) } & !0b11;
    // Speaker off, gate closed. Channel 2, both bytes, mode 0: the output rises at the terminal count.
    for (port, value) in [(GATE, gate), (COMMAND, 0b1011_0000), (CHANNEL, 0xff), (CHANNEL, 0xff), (GATE, gate | 1)] {
        // SAFETY: as above.
        unsafe { out8(port, value) };
    }
    let start = Sample::of_pit();
    // SAFETY: as above.
    let is_over = || unsafe { in8(GATE) } & OUTPUT != 0;
    let end = last(Sample::of_pit, |end| start.count.saturating_sub(end.count), SPAN, is_over);
    // SAFETY: as above.
    unsafe { out8(GATE, gate) };
    let end = end?;
    start.until(&end, start.count.checked_sub(end.count)?, PIT_HZ)
}

/// Counts ticks while the ACPI timer counts (ACPI Specification, "Power Management Timer"). `None` if it stands still. Otherwise as
/// [`Sample::until`].
fn measured_by_acpi(port: u16) -> Option<(u64, u64)> {
    const HZ: u64 = 3_579_545;
    /// Its 24 bits wrap after five seconds.
    const BITS: u32 = 0xff_ffff;
    /// Counts between the samples: 42 ms.
    const SPAN: u32 = 150_000;
    // SAFETY: firmware's tables have the timer at this port; reads have no side effects.
    let sample = || Sample::take(|| unsafe { in32(port) }, |count| count & BITS);
    let start = sample();
    let counted = |end: &Sample| end.count.wrapping_sub(start.count) & BITS;
    let end = last(sample, counted, SPAN, || false)?;
    start.until(&end, counted(&end), HZ)
}

/// Busy-waits.
pub fn wait_us(us: u64) {
    let start = rdtsc();
    while rdtsc() - start < us * frequency() / 1_000_000 {
        core::hint::spin_loop();
    }
}
