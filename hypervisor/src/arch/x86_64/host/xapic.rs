//! The physical APICs in xAPIC mode, whose registers are in memory: for a machine with a gate
//! (`vmx/gate.rs`), which maps them for its code.
//!
//! The rest of Stile accesses x2APIC registers. In xAPIC mode these accesses fault, and `general_protection` in `idt.S`
//! performs them in memory. So machines without a gate pay nothing, not even a branch.

use core::sync::atomic::{AtomicU64, Ordering};

use stile_speculation::x86_64::leaf_7;

use super::instructions::{cpuid, msr, rdmsr, wrmsr};
use crate::address_space;

/// Virtual address of the registers, for `idt.S`; 0 in x2APIC mode.
pub static REGISTERS: AtomicU64 = AtomicU64::new(0);
/// Physical address of the registers of each CPU's own APIC.
static PHYSICAL: AtomicU64 = AtomicU64::new(0);

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const ENABLED: u64 = 1 << 11;
const X2APIC: u64 = 1 << 10;

/// Offsets of registers.
const ID: u64 = 0x20;
const ICR: u64 = 0x300;
const ICR_HIGH: u64 = 0x310;
const INITIAL_COUNT: u64 = 0x380;
const DIVIDE: u64 = 0x3e0;
/// Delivery status in [`ICR`]: the message is on its way.
const SENDING: u32 = 1 << 12;

/// Selects xAPIC mode for all CPUs. Called on the boot CPU before any APIC is set up.
pub fn choose() {
    // SAFETY: the register exists wherever an APIC does, and reads have no side effects.
    let at = unsafe { rdmsr(msr::IA32_APIC_BASE) } & ADDRESS;
    PHYSICAL.store(at, Ordering::Relaxed);
    REGISTERS.store(address_space::device(at..at + 4096) as u64, Ordering::Relaxed);
}

/// Whether the APICs are in xAPIC mode.
pub fn is_on() -> bool {
    REGISTERS.load(Ordering::Relaxed) != 0
}

/// Physical address of the registers.
pub fn physical() -> u64 {
    PHYSICAL.load(Ordering::Relaxed)
}

fn register(offset: u64) -> *mut u32 {
    (REGISTERS.load(Ordering::Relaxed) + offset) as *mut u32
}

/// Whether this CPU's APIC can't leave x2APIC mode ("IA32_XAPIC_DISABLE_STATUS").
pub fn is_locked() -> bool {
    const HAS_STATUS: u64 = 1 << 21;
    const DISABLED: u64 = 1 << 0;
    if cpuid(0, 0).eax < 7 || cpuid(7, 0).edx & leaf_7::ARCH_CAPABILITIES == 0 {
        return false;
    }
    // SAFETY: CPUID enumerates the first register, which enumerates the second; reads have no side effects.
    unsafe { rdmsr(msr::IA32_ARCH_CAPABILITIES) & HAS_STATUS != 0 && rdmsr(msr::IA32_XAPIC_DISABLE_STATUS) & DISABLED != 0 }
}

/// Puts this CPU's APIC into xAPIC mode, if that was chosen.
pub fn enter() -> bool {
    if !is_on() {
        return false;
    }
    // SAFETY: x2APIC mode is left by disabling the APIC ("x2APIC States"); the address is the boot CPU's.
    unsafe {
        if rdmsr(msr::IA32_APIC_BASE) & X2APIC != 0 {
            wrmsr(msr::IA32_APIC_BASE, rdmsr(msr::IA32_APIC_BASE) & !(ENABLED | X2APIC));
        }
        wrmsr(msr::IA32_APIC_BASE, rdmsr(msr::IA32_APIC_BASE) & !ADDRESS | physical() | ENABLED);
    }
    // With CR3 on this page a guest's walk reads registers as entries: none with P set and A clear may be writable
    // (docs/x86-gate.md). The divisor could be one, which Stile's timer does not use.
    for offset in [INITIAL_COUNT, DIVIDE] {
        // SAFETY: `choose` mapped the registers; zero stops the timer, which is not set up yet.
        unsafe { register(offset).write_volatile(0) };
    }
    true
}

/// Sets the ICR's destination to this CPU: a guest that enters the gate behind its store of a destination notifies
/// no other CPU. `idt.S` does the same after each message of Stile's, and `exit.S` at each exit of such a guest.
pub fn park() {
    // SAFETY: `choose` mapped the registers; a destination alone sends nothing. Interrupts are masked: no message of
    // this CPU is in preparation. One that was sent keeps its destination only once it is delivered.
    unsafe {
        while register(ICR).read_volatile() & SENDING != 0 {
            core::hint::spin_loop();
        }
        register(ICR_HIGH).write_volatile(register(ID).read_volatile());
    }
}
