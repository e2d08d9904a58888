//! The physical machine: its CPUs, memory, interrupt controllers, timer and console; VMX operation and the fields of a VMCS.

pub mod apic;
pub mod board;
pub mod cpu;
pub mod descriptor_tables;
pub mod firmware;
pub mod heap;
pub mod idt;
pub mod instructions;
pub mod mmu;
pub mod rtc;
pub mod speculation;
pub mod timer;
pub mod uart;
pub mod vmcs;
pub mod vmx;

/// Sleeps until an interrupt comes, also one that came before. It is noted in the CPU's block.
pub fn wait_for_interrupt() {
    // SAFETY: Stile's interrupts only leave a note. STI lets none come before HLT has begun.
    unsafe { core::arch::asm!("sti", "hlt", "cli", options(nostack)) };
}
