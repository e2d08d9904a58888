//! Nested VMX: guests (L1) that run guests of their own (L2). Rules and tables: crate `stile-nested-vmx`.
//!
//! L1's own VMCS is VMCS01, its VMCS for an L2 is VMCS12, and VMCS02 is the one that the processor runs that L2 with. VMCS12 is kept in
//! Stile's memory while it is current. Whenever code outside this folder runs, VMCS01 is the processor's current VMCS, also if the vCPU
//! is in L2: exits of L2 come here first ([`exit`]), and [`enter::resume_l2`] is the way back.

mod complete;
mod control_registers;
mod end;
mod enter;
mod exit;
mod forward;
mod frames;
mod instructions;
mod l2_memory;
mod lists;
mod merge;
mod msrs;
mod of_l1;
mod operand;
mod own;
mod rows;
mod second_stage;
mod shadow_vmcs;
mod state;
mod string_io;
mod vmcs02;

pub use control_registers::{may_write_cr0, write as write_cr4};
pub use enter::failed;
pub use msrs::read as read_msr;
pub use state::{GuestVmx, Offer, load, new_vcpu, power_down, put};
