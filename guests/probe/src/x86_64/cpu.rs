//! What interrupts count, for each CPU; instructions that Rust has no words for.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::*};

use super::console;

/// CPUs that the probe uses at most.
pub const CPUS: usize = 2;

/// Ticks of the counter in a microsecond: 100 million instructions are a second of the emulated PC's.
const TICKS: u64 = 100;

/// A CPU's account, which only its own interrupts write.
#[repr(C, align(64))]
pub struct Slot {
    taken: AtomicU64,
}

/// The accounts, by number of the CPU.
pub static SLOTS: [Slot; CPUS] = [const { Slot { taken: AtomicU64::new(0) } }; CPUS];

/// Instructions that are not there.
pub static FAULTS: AtomicU64 = AtomicU64::new(0);

/// How many interrupts a CPU has taken.
pub fn taken(cpu: usize) -> u64 {
    SLOTS[cpu].taken.load(Acquire)
}

/// Where that number is, for loops in assembly.
pub fn taken_address(cpu: usize) -> u64 {
    SLOTS[cpu].taken.as_ptr() as u64
}

/// How many instructions and devices were found not to be there.
pub fn faults() -> u64 {
    FAULTS.load(Acquire)
}

/// What an operation needs is not there.
pub fn note_absent() {
    FAULTS.fetch_add(1, AcqRel);
}

/// The time-stamp counter.
pub fn now() -> u64 {
    // SAFETY: reading the counter changes nothing.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The counter's ticks in so many microseconds.
pub const fn ticks(microseconds: u64) -> u64 {
    microseconds * TICKS
}

/// Spins for so many microseconds.
pub fn pause(microseconds: u64) {
    let until = now() + ticks(microseconds);
    while now() < until {
        core::hint::spin_loop();
    }
}

/// Masks interrupts.
pub fn mask() {
    // SAFETY: Rust code relies on no interrupt. Memory may have changed before.
    unsafe { asm!("cli", options(nostack)) };
}

/// Unmasks interrupts, and takes those that are pending.
pub fn unmask() {
    // SAFETY: the handlers change nothing that Rust code relies on but atomics.
    unsafe { asm!("sti", "nop", options(nostack)) };
}

/// Reads a byte from a port. The probe's own devices are the only ones, so nothing of Rust's is changed.
pub fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: reads of the ports that the probe names have no effect on memory.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) };
    value
}

/// Writes a byte to a port.
pub fn out8(port: u16, value: u8) {
    // SAFETY: as for `in8`.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// Writes a model-specific register. What is not there is counted: see [`faults`].
pub fn wrmsr(register: u32, value: u64) {
    // SAFETY: the probe is alone on its machine, and no Rust code relies on the registers that it writes: those of the APIC.
    unsafe { asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack)) };
}

/// Reads a model-specific register.
pub fn rdmsr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads of registers change nothing.
    unsafe { asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Ends the machine: by ACPI's power-management register as Stile, QEMU and KVM's client have it, and by the emulator's own port.
pub fn off() -> ! {
    const POWER: u16 = 0x604;
    const EMULATOR: u16 = 0x8900;
    console::drain();
    // SAFETY: the machine is to end.
    unsafe { asm!("out dx, ax", in("dx") POWER, in("ax") 1u16 << 13, options(nostack)) };
    b"Shutdown".iter().for_each(|byte| out8(EMULATOR, *byte));
    loop {
        // SAFETY: waits; interrupts change nothing that Rust code relies on.
        unsafe { asm!("hlt", options(nostack)) };
    }
}
