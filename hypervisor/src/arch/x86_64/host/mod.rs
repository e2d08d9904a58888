//! The physical machine: its CPUs, memory, interrupt controllers, timer and console; VMX operation and the fields of a VMCS.

pub mod apic;
pub mod board;
pub mod cpu;
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
