//! The physical machine: its CPUs, memory, interrupt controller, timer and console.

pub mod board;
pub mod broadcom_power;
pub mod bulk;
pub mod cpu;
pub mod description;
pub mod features;
pub mod firmware;
mod general_registers;
pub mod gic;
pub mod gicv2;
pub mod identity;
pub mod its;
pub mod mmio;
pub mod mmu;
pub mod pcie;
mod pl011;
pub mod pmu;
pub mod probe;
pub mod redistributor;
pub mod sgi;
pub mod smmu;
pub mod speculation;
pub mod spin_table;
pub mod sysreg;
pub mod timer;
pub mod uart;
pub mod vpe;

use sysreg::isb;

/// Waits for a pending interrupt, masked or not (WFI).
pub fn wait_for_interrupt() {
    // A kick may still be in the register write.
    isb();
    // SAFETY: earlier stores must be visible before the wait, which has no other effect.
    unsafe { core::arch::asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
}
