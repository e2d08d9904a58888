//! The time-stamp counter, and this CPU's APIC timer in TSC-deadline mode, which runs only while vCPUs share this CPU or one sleeps with a
//! deadline.

use core::sync::atomic::{AtomicU64, Ordering};

use super::instructions::{cpuid, in8, msr, out8, rdtsc, wrmsr};

static FREQUENCY: AtomicU64 = AtomicU64::new(1_000_000_000);

/// Ticks since some moment, the same on all CPUs.
#[inline(always)]
pub fn now() -> u64 {
    rdtsc()
}

/// Ticks a second.
pub fn frequency() -> u64 {
    FREQUENCY.load(Ordering::Relaxed)
}

/// Programs the deadline, or turns the timer off.
pub fn set_deadline(deadline: Option<u64>) {
    // Zero disarms it.
    let value = deadline.map_or(0, |at| at.max(1));
    // SAFETY: boot refuses CPUs without the register, and the vector is Stile's own.
    unsafe { wrmsr(msr::IA32_TSC_DEADLINE, value) };
}

/// Finds out how fast the counter runs: what CPUID says, or else measured against the PIT.
pub fn calibrate() {
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

/// Counts the ticks while channel 2 of the 8254 counts down.
fn measured() -> u64 {
    const PIT_HZ: u64 = 1_193_182;
    const COUNT: u16 = 11_932; // 10 ms
    const GATE: u16 = 0x61;
    // SAFETY: channel 2 and its gate drive the speaker; nobody else uses them.
    unsafe {
        // The speaker off, the gate closed.
        let gate = in8(GATE) & !0b11;
        out8(GATE, gate);
        // Channel 2, both bytes, mode 0: the output rises when the count has come to zero.
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

/// Spins.
pub fn wait_us(us: u64) {
    let start = rdtsc();
    while rdtsc() - start < us * frequency() / 1_000_000 {
        core::hint::spin_loop();
    }
}
