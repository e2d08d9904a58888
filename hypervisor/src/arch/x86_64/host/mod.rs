//! The physical machine: its CPUs, memory, interrupt controllers, timer and console; VMX operation and the fields of a VMCS.

pub mod apic;
pub mod board;
pub mod cpu;
pub mod cpuid;
#[cfg(not(feature = "svm"))]
mod deadline_timer;
pub mod descriptor_tables;
pub mod firmware;
pub mod guest_word;
pub mod heap;
pub mod idt;
pub mod instructions;
pub mod mmu;
#[cfg(feature = "svm")]
mod one_shot_timer;
pub mod rtc;
pub mod speculation;
#[cfg(not(feature = "svm"))]
pub mod state;
pub mod timer;
pub mod uart;
#[cfg(not(feature = "svm"))]
pub mod vmcs;
#[cfg(not(feature = "svm"))]
pub mod vmx;
pub mod xapic;

#[cfg(feature = "svm")]
pub use super::svm::{extension, state};
#[cfg(not(feature = "svm"))]
pub use vmx as extension;

unsafe extern "C" {
    #[link_name = "wait_for_interrupt"]
    fn wait();
}

/// Waits for an interrupt, which may have arrived before; it is noted in the CPU's block.
pub fn wait_for_interrupt() {
    // SAFETY: `idt.S`. Interrupts are enabled only meanwhile; their handlers set a bit, and change no register.
    unsafe { wait() };
}
