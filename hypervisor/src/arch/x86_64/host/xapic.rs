//! The physical APICs in xAPIC mode, whose registers are in memory: for a machine with a gate
//! ([`crate::arch::x86_64::vm::gate`]), which maps them for its code.
//!
//! The rest of Stile accesses x2APIC registers. In xAPIC mode these accesses fault, and `general_protection` in `idt.S`
//! performs them in memory. So machines without a gate pay nothing, not even a branch.

use core::sync::atomic::{AtomicU64, Ordering};

use super::instructions::{msr, rdmsr, wrmsr};
use crate::address_space;

/// Where the registers are mapped, for `idt.S`; 0 in x2APIC mode.
pub static REGISTERS: AtomicU64 = AtomicU64::new(0);
/// Physical address of the registers of each CPU's own APIC.
static PHYSICAL: AtomicU64 = AtomicU64::new(0);

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const ENABLED: u64 = 1 << 11;
const X2APIC: u64 = 1 << 10;

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

/// Puts this CPU's APIC into xAPIC mode, if that was chosen.
pub fn enter() -> bool {
    if !is_on() {
        return false;
    }
    // SAFETY: from x2APIC mode the way leads through a disabled APIC ("x2APIC States"); the address is the boot CPU's.
    unsafe {
        if rdmsr(msr::IA32_APIC_BASE) & X2APIC != 0 {
            wrmsr(msr::IA32_APIC_BASE, rdmsr(msr::IA32_APIC_BASE) & !(ENABLED | X2APIC));
        }
        wrmsr(msr::IA32_APIC_BASE, rdmsr(msr::IA32_APIC_BASE) & !ADDRESS | physical() | ENABLED);
    }
    true
}

/// Sets the ICR's destination to this CPU: a guest that enters the gate behind its store of a destination notifies
/// no other CPU. `idt.S` does the same after each message of Stile's, and `exit.S` at each exit of such a guest.
pub fn park() {
    const ID: u64 = 0x20;
    const ICR_HIGH: u64 = 0x310;
    let registers = REGISTERS.load(Ordering::Relaxed);
    // SAFETY: `choose` mapped the registers; a destination alone sends nothing. Interrupts are masked: no message of
    // this CPU is in preparation.
    unsafe { ((registers + ICR_HIGH) as *mut u32).write_volatile(((registers + ID) as *const u32).read_volatile()) };
}
