//! Per-CPU counters of interrupts; wrappers of instructions.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::console;
use super::ports::out8;

/// Maximum number of CPUs that the probe uses.
pub const CPUS: usize = 2;

/// Ticks per microsecond: on the emulated PC, a second is 100 million instructions.
const TICKS: u64 = 100;

/// A CPU's counters, written only by its own interrupt handlers.
#[repr(C, align(64))]
pub struct Slot {
    taken: AtomicU64,
    /// Bit 0: the handler may end its interrupt by clearing it.
    eoi: AtomicU32,
}

/// Offset of the word with that bit.
pub const EOI: usize = core::mem::offset_of!(Slot, eoi);

/// The counters, by CPU number.
pub static SLOTS: [Slot; CPUS] = [const { Slot { taken: AtomicU64::new(0), eoi: AtomicU32::new(0) } }; CPUS];

/// Number of #UD and #GP exceptions, and of missing requirements ([`note_absent`]).
pub static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Number of interrupts for all CPUs that they have taken together.
pub static TAKEN_BY_ALL: AtomicU64 = AtomicU64::new(0);

/// Number of interrupts that a CPU has taken.
pub fn taken(cpu: usize) -> u64 {
    SLOTS[cpu].taken.load(Acquire)
}

/// Address of that number, for loops in assembly.
pub fn taken_address(cpu: usize) -> u64 {
    SLOTS[cpu].taken.as_ptr() as u64
}

/// Address of the word whose bit 0 ends a CPU's interrupts.
pub fn eoi_address(cpu: usize) -> u64 {
    SLOTS[cpu].eoi.as_ptr() as u64
}

/// Number of #UD and #GP exceptions, and of missing requirements ([`note_absent`]).
pub fn faults() -> u64 {
    FAULTS.load(Acquire)
}

/// Records that an operation's requirement is missing.
pub fn note_absent() {
    FAULTS.fetch_add(1, AcqRel);
}

/// Number of the machine's CPUs, if they are one socket's.
pub fn count() -> u64 {
    // SAFETY: CPUID writes only four registers, which are outputs.
    #[allow(unused_unsafe, reason = "it is no longer unsafe in newer compilers")]
    let own = unsafe { core::arch::x86_64::__cpuid(1) };
    u64::from(own.ebx >> 16 & 0xff).max(1)
}

/// The time-stamp counter.
pub fn now() -> u64 {
    // SAFETY: the instruction only reads the counter, into registers that are outputs.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads a counter. #GP is counted, and means that there is none.
fn rdpmc(counter: u32) -> Option<u64> {
    let before = faults();
    let (mut low, mut high) = (0u32, 0u32);
    // SAFETY: RDPMC changes only registers that are outputs; the handler of #GP skips it.
    unsafe { asm!("rdpmc", in("ecx") counter, inout("eax") low, inout("edx") high, options(nostack)) };
    (faults() == before).then_some(u64::from(high) << 32 | u64::from(low))
}

/// The CPU's cycles: Intel's fixed counter 1.
pub fn cycles() -> Option<u64> {
    rdpmc(0x4000_0001)
}

/// The CPU's instructions: Intel's fixed counter 0.
pub fn instructions() -> Option<u64> {
    rdpmc(0x4000_0000)
}

/// Converts microseconds to ticks of the counter.
pub const fn ticks(microseconds: u64) -> u64 {
    microseconds * TICKS
}

/// Turns of the loop below in a microsecond, or fewer. Where ticks are real time, [`TICKS`] pass in a fraction of a microsecond, in which
/// an emulated CPU does little.
const TURNS: u64 = 20;

/// Spins for a number of microseconds.
pub fn pause(microseconds: u64) {
    let until = now() + ticks(microseconds);
    let mut turns = 0;
    while now() < until || turns < TURNS * microseconds {
        turns += 1;
        core::hint::spin_loop();
    }
}

/// Masks interrupts.
pub fn mask() {
    // SAFETY: Rust code relies on no interrupt. Earlier handlers may have changed memory.
    unsafe { asm!("cli", options(nostack)) };
}

/// Unmasks interrupts, and takes pending ones.
pub fn unmask() {
    // SAFETY: the handlers save the registers that they use, and change only atomic variables.
    unsafe { asm!("sti", "nop", options(nostack)) };
}

/// Waits for an interrupt, which is taken; interrupts are masked before and after.
pub fn halt() {
    // SAFETY: the handlers save the registers that they use, and change only atomic variables.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// Writes a model-specific register. #GP is counted: see [`faults`].
pub fn wrmsr(register: u32, value: u64) {
    // SAFETY: the probe is alone on its machine, and no Rust code relies on the registers that it writes: the
    // APIC's.
    unsafe { asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack)) };
}

/// Reads a model-specific register.
pub fn rdmsr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: RDMSR changes only registers that are outputs; callers read registers that exist.
    unsafe { asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Resets the machine, by its keyboard controller.
pub fn reset() -> ! {
    const KEYBOARD: u16 = 0x64;
    const RESET: u8 = 0xfe;
    console::drain();
    out8(KEYBOARD, RESET);
    loop {
        core::hint::spin_loop();
    }
}

/// Powers the machine off: by ACPI's power-management register of Stile, QEMU and the KVM client, and by the
/// emulator's own port.
pub fn off() -> ! {
    const POWER: u16 = 0x604;
    const EMULATOR: u16 = 0x8900;
    console::drain();
    // SAFETY: the port powers the machine off; it is no DMA device, so that no memory changes.
    unsafe { asm!("out dx, ax", in("dx") POWER, in("ax") 1u16 << 13, options(nostack)) };
    b"Shutdown".iter().for_each(|byte| out8(EMULATOR, *byte));
    loop {
        // SAFETY: waits; interrupt handlers change only atomics.
        unsafe { asm!("hlt", options(nostack)) };
    }
}
