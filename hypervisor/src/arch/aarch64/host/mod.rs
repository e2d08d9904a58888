//! The physical machine: its CPUs, memory, interrupt controller, timer and console.

pub mod board;
pub mod bulk;
pub mod cpu;
pub mod features;
pub mod firmware;
pub mod gic;
pub mod its;
pub mod mmio;
pub mod mmu;
pub mod pcie;
pub mod redistributor;
pub mod smmu;
pub mod speculation;
pub mod sysreg;
pub mod timer;
pub mod uart;

use sysreg::isb;

/// Sleeps until an interrupt is pending, masked or not.
pub fn wait_for_interrupt() {
    // A kick that was sent just now is on its way.
    isb();
    // SAFETY: what was written before must be seen before the wait; the wait itself changes nothing.
    unsafe { core::arch::asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
}
