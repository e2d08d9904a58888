//! Sending by posted-interrupt descriptors, and waiting.

use core::arch::asm;
use core::arch::x86_64::__cpuid as cpuid;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pc::exception::COUNTS;
use pc::gate::{self, CONTROL, FEATURES, SENDS};
use pc::lapic as apic;
use pc::machine::{cli, rdmsr, wrmsr};

/// The ICR in x2APIC mode.
pub const ICR: u32 = 0x830;
/// Bit of a descriptor's word of control.
pub const ON: u64 = 1;

/// Reads the control register.
pub fn control() -> u64 {
    // SAFETY: callers have `features`, which found the register; reading it has no side effect.
    unsafe { rdmsr(CONTROL) }
}

/// Writes the control register.
pub fn set_control(value: u64) {
    // SAFETY: the MSR is there, as the VM has direct interprocessor interrupts, and the value is valid.
    unsafe { wrmsr(CONTROL, value) };
}

/// Address of the descriptors.
pub static BASE: AtomicU64 = AtomicU64::new(0);

/// A posted-interrupt descriptor.
pub struct Descriptor {
    /// PIR.
    pub requests: &'static [AtomicU32; 8],
    /// The word with ON.
    pub control: &'static AtomicU64,
}

/// The descriptor of the CPU with an identifier.
pub fn descriptor(cpu: u32) -> Descriptor {
    let at = BASE.load(Ordering::SeqCst) + u64::from(cpu) * 4096;
    // SAFETY: Stile has them there once they are enabled, and the first 4 GiB are mapped.
    unsafe { Descriptor { requests: &*(at as *const [AtomicU32; 8]), control: &*((at + 32) as *const AtomicU64) } }
}

/// Posts an interrupt, and notifies its CPU.
pub fn send(to: u32, vector: u8) {
    let descriptor = descriptor(to);
    descriptor.requests[usize::from(vector >> 5)].fetch_or(1 << (vector & 31), Ordering::SeqCst);
    if descriptor.control.fetch_or(ON, Ordering::SeqCst) & ON == 0 {
        if has_gate() {
            return gate::notify(to);
        }
        let target = descriptor.control.load(Ordering::SeqCst);
        // SAFETY: the vector and the destination are Stile's.
        unsafe { wrmsr(ICR, target & 0xffff_ffff_0000_0000 | target >> 16 & 0xff) };
    }
}

/// Whether notifications go through the gate.
pub fn has_gate() -> bool {
    cpuid(FEATURES).eax & gate::FEATURE != 0
}

/// Number of interrupts of a vector.
pub fn count(vector: u8) -> u64 {
    COUNTS[usize::from(vector)].load(Ordering::SeqCst)
}

/// Puts this CPU into x2APIC mode with direct sending.
pub fn enable() {
    apic::set_base(apic::base() | apic::X2);
    apic::enable();
    set_control(SENDS);
}

/// Waits by HLT until the condition holds, which an interrupt makes true.
pub fn halt_until(condition: impl Fn() -> bool) {
    loop {
        cli();
        if condition() {
            return;
        }
        // SAFETY: an interrupt that arrives after the check ends the wait.
        unsafe { asm!("sti", "hlt", options(nostack)) };
    }
}
