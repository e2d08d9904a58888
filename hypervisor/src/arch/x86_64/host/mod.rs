//! The physical machine: its CPUs, memory, interrupt controllers, timer and console.

pub mod apic;
pub mod board;
pub mod cpu;
pub mod cpuid;
pub mod description;
pub mod descriptor_tables;
pub mod firmware;
pub mod guest_word;
pub mod heap;
pub mod identity;
pub mod idt;
pub mod instructions;
#[allow(dead_code, reason = "only VMs with functions use it")]
pub mod iommu;
#[allow(dead_code, reason = "only VMs with functions use it")]
pub mod mmio;
pub mod mmu;
#[allow(dead_code, reason = "only VMs with functions use it")]
pub mod pcie;
pub mod pmu;
pub mod rtc;
pub mod speculation;
pub mod timer;
pub mod uart;
pub mod xapic;

unsafe extern "C" {
    #[link_name = "wait_for_interrupt"]
    fn wait();
}

/// Waits for an interrupt, which may have arrived before; it is noted in the CPU's block.
pub fn wait_for_interrupt() {
    // SAFETY: `idt.S`. Interrupts are enabled only meanwhile; their handlers set a bit, and change no register.
    unsafe { wait() };
}
