//! The time-stamp counter, and this CPU's APIC timer in TSC-deadline mode, which runs only while vCPUs share this CPU or one sleeps with a
//! deadline.

use core::sync::atomic::{AtomicU64, Ordering};

use super::cpu::Cpu;
use super::instructions::{cpuid, in8, msr, out8, rdtsc, wrmsr};
use crate::MAX_CPUS;

static FREQUENCY: AtomicU64 = AtomicU64::new(1_000_000_000);

/// Ticks between two rings of a guest's timer that rings by itself, at least: of a period shorter than its exit nothing would be left to the
/// guest.
pub const LEAST_PERIOD: u64 = 8192;

/// Ticks since some moment, the same on all CPUs.
#[inline(always)]
pub fn now() -> u64 {
    rdtsc()
}

/// Ticks a second.
pub fn frequency() -> u64 {
    FREQUENCY.load(Ordering::Relaxed)
}

/// In the arrays below: there is none.
const NEVER: u64 = u64::MAX;
/// When the scheduler wants each CPU's timer to ring.
static OWN: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(NEVER) }; MAX_CPUS];
/// When the timer of the vCPU that is loaded on each CPU rings.
static GUEST: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(NEVER) }; MAX_CPUS];

/// Sets this CPU's deadline for the scheduler, or none.
pub fn set_deadline(deadline: Option<u64>) {
    set(&OWN, deadline);
}

/// Sets the deadline of the vCPU that is loaded on this CPU, or none.
#[inline]
pub fn set_guest_deadline(deadline: Option<u64>) {
    set(&GUEST, deadline);
}

#[inline(always)]
fn set(which: &[AtomicU64; MAX_CPUS], deadline: Option<u64>) {
    let cpu = Cpu::this_index() & (MAX_CPUS - 1);
    which[cpu].store(deadline.unwrap_or(NEVER), Ordering::Relaxed);
    let next = OWN[cpu].load(Ordering::Relaxed).min(GUEST[cpu].load(Ordering::Relaxed));
    // Zero disarms it.
    let value = if next == NEVER { 0 } else { next.max(1) };
    // SAFETY: boot refuses CPUs without the register, and the vector is Stile's own.
    unsafe { wrmsr(msr::IA32_TSC_DEADLINE, value) };
}

/// Which of this CPU's deadlines have come: the scheduler's, and the loaded vCPU's. The timer is set to the next one by whoever follows it.
pub fn due() -> (bool, bool) {
    let cpu = Cpu::this_index() & (MAX_CPUS - 1);
    let now = now();
    (OWN[cpu].load(Ordering::Relaxed) <= now, GUEST[cpu].load(Ordering::Relaxed) <= now)
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
