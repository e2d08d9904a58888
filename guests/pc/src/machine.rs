//! Wrappers of instructions.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::hypercall;

/// Reads a byte from a port.
///
/// # Safety
/// The device's side effects are intended.
pub unsafe fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: the caller guarantees what the function's documentation requires; no memory is accessed.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) };
    value
}

/// Writes a byte to a port.
///
/// # Safety
/// As [`in8`].
pub unsafe fn out8(port: u16, value: u8) {
    // SAFETY: the caller guarantees what the function's documentation requires; no memory is accessed.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// Writes two bytes to a port.
///
/// # Safety
/// As [`in8`].
pub unsafe fn out16(port: u16, value: u16) {
    // SAFETY: the caller guarantees what the function's documentation requires; no memory is accessed.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags)) };
}

/// Writes four bytes to a port.
///
/// # Safety
/// As [`out8`].
pub unsafe fn out32(port: u16, value: u32) {
    // SAFETY: the caller guarantees what the function's documentation requires; no memory is accessed.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) };
}

/// Reads four bytes from a port.
///
/// # Safety
/// As [`in8`].
pub unsafe fn in32(port: u16) -> u32 {
    let value: u32;
    // SAFETY: the caller guarantees what the function's documentation requires; no memory is accessed.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack, preserves_flags)) };
    value
}

/// Reads a model-specific register.
///
/// # Safety
/// The CPU has the register.
pub unsafe fn rdmsr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller guarantees what the function's documentation requires; no memory is accessed.
    unsafe { asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The CPU has the register and accepts the value, with which this program can continue.
pub unsafe fn wrmsr(register: u32, value: u64) {
    // SAFETY: the caller guarantees what the function's documentation requires; no memory is accessed.
    unsafe { asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags)) };
}

/// The time-stamp counter.
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, which has no side effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}

static PACE: AtomicU64 = AtomicU64::new(1);

/// Ticks in which this machine does what takes a tick where ticks count instructions: more where they are real time. Valid after [`find_pace`].
pub fn pace() -> u64 {
    PACE.load(Ordering::Relaxed)
}

/// Sets [`pace`]: ticks are real time in QEMU, whose processors are AMD's.
pub fn find_pace() {
    if hypercall::is_amds() {
        PACE.store(2048, Ordering::Relaxed);
    }
}

/// Enables interrupts.
pub fn sti() {
    // SAFETY: there is a handler for each. Interrupts are recognized after the next instruction.
    unsafe { asm!("sti", "nop", options(nostack)) };
}

/// Disables interrupts.
pub fn cli() {
    // SAFETY: CLI changes only RFLAGS.IF, and at privilege level 0 does not fault.
    unsafe { asm!("cli", options(nostack)) };
}

/// The command line in Multiboot's information; it begins with the file's name.
pub fn command_line(info: u32) -> &'static str {
    // SAFETY: the loader put its information there, and the first GiB is mapped.
    let word = |at: u32| unsafe { ((info + at) as *const u32).read_volatile() };
    if word(0) & 1 << 2 == 0 {
        return "";
    }
    // SAFETY: the loader put its information there, and the first GiB is mapped; the line ends with a NUL.
    unsafe { core::ffi::CStr::from_ptr(word(16) as *const core::ffi::c_char) }.to_str().unwrap_or("")
}

/// Powers the machine off: by ACPI's PM1a control register on Stile and QEMU, or by Bochs' port.
pub fn off() -> ! {
    // SAFETY: these ports power the machine off or do nothing; the function does not return.
    unsafe {
        out16(0x604, 1 << 13);
        for byte in *b"Shutdown" {
            out8(0x8900, byte);
        }
    }
    loop {
        // SAFETY: port 0x80 has POST codes: a read has no side effect.
        unsafe { in8(0x80) };
    }
}
