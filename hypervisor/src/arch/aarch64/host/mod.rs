//! The physical machine: its CPUs, memory, interrupt controller, timer and console.

pub mod board;
pub mod bulk;
pub mod cpu;
pub mod features;
pub mod firmware;
pub mod gic;
pub mod mmio;
pub mod mmu;
pub mod speculation;
pub mod sysreg;
pub mod timer;
pub mod uart;
