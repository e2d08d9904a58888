//! The time-stamp counter, and this CPU's APIC timer in TSC-deadline mode, which runs only while vCPUs share this CPU or one sleeps with a
//! deadline.

use core::ptr;
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
/// When the timer of the vCPU that is loaded on each CPU rings, unless it is [`share`]d.
static GUEST: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(NEVER) }; MAX_CPUS];

/// Sets this CPU's deadline for the scheduler, or none.
pub fn set_deadline(deadline: Option<u64>) {
    let cpu = this_cpu();
    GUEST[cpu].store(guest_deadline(cpu), Ordering::Relaxed);
    forget_place();
    OWN[cpu].store(deadline.unwrap_or(NEVER), Ordering::Relaxed);
    set(cpu);
}

/// Sets the deadline of the vCPU that is loaded on this CPU, or none.
#[inline]
pub fn set_guest_deadline(deadline: Option<u64>) {
    let cpu = this_cpu();
    forget_place();
    GUEST[cpu].store(deadline.unwrap_or(NEVER), Ordering::Relaxed);
    set(cpu);
}

/// From now on, until one of the above is called, the deadline of the vCPU that is loaded on this CPU is what is at `place`, none if that is
/// 0, and who writes there sets this CPU's timer to the same. Not if there is a deadline of the scheduler's.
///
/// # Safety
/// The place stays until one of the above is called, and nobody has a reference to it then.
pub unsafe fn share(place: *mut u64) {
    if OWN[this_cpu()].load(Ordering::Relaxed) == NEVER {
        // SAFETY: the caller's promise.
        unsafe { Cpu::set_direct_deadline(place) };
    }
}

fn forget_place() {
    // SAFETY: it is none.
    unsafe { Cpu::set_direct_deadline(ptr::null_mut()) };
}

#[inline(always)]
fn this_cpu() -> usize {
    Cpu::this_index() & (MAX_CPUS - 1)
}

/// The deadline of the vCPU that is loaded on this CPU.
#[inline(always)]
fn guest_deadline(cpu: usize) -> u64 {
    let place = Cpu::direct_deadline();
    if place.is_null() {
        return GUEST[cpu].load(Ordering::Relaxed);
    }
    // SAFETY: the promise of `share`.
    match unsafe { place.read() } {
        0 => NEVER,
        deadline => deadline,
    }
}

#[inline(always)]
fn set(cpu: usize) {
    let next = OWN[cpu].load(Ordering::Relaxed).min(GUEST[cpu].load(Ordering::Relaxed));
    // Zero disarms it.
    let value = if next == NEVER { 0 } else { next.max(1) };
    // SAFETY: boot refuses CPUs without the register, and the vector is Stile's own.
    unsafe { wrmsr(msr::IA32_TSC_DEADLINE, value) };
}

/// Whether this CPU's only deadline is that of the loaded vCPU's local APIC: once that has come, the timer is not set.
#[inline(always)]
pub fn is_shared() -> bool {
    !Cpu::direct_deadline().is_null()
}

/// Which of this CPU's deadlines have come: the scheduler's, and the loaded vCPU's. The timer is set to the next one by whoever follows it.
pub fn due() -> (bool, bool) {
    let cpu = this_cpu();
    let now = now();
    (OWN[cpu].load(Ordering::Relaxed) <= now, guest_deadline(cpu) <= now)
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
