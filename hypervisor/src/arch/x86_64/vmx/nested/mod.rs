//! Nested VMX: guests (L1) that run guests (L2). Rules and tables: crate `stile-nested-vmx`.
//!
//! VMCS01 is L1's own VMCS, VMCS12 is L1's VMCS of an L2, and VMCS02 the one with which the processor runs L2. A
//! current VMCS12 is cached in Stile's memory. While code outside this folder runs, VMCS01 is the processor's current
//! VMCS, even if the vCPU is in L2: exits of L2 arrive here first ([`exit`]), and [`enter::resume_l2`] returns to L2.

mod complete;
mod completion;
mod control_registers;
mod device;
mod end;
mod enlightened;
mod enter;
mod exit;
mod forward;
mod frames;
mod instructions;
mod l0_exits;
mod l1_msrs;
mod l2_memory;
mod l2_space;
mod lists;
mod merge;
mod msrs;
mod operand;
mod posted;
mod raise;
mod replaced;
mod rows;
mod second_stage;
mod shadow_vmcs;
mod state;
mod string_io;
mod timer;
mod virtual_apic;
mod vmcs02;

pub use control_registers::{may_write_cr0, write as write_cr4};
pub use enter::failed;
pub use msrs::{read as read_msr, write as write_msr};
pub use state::{GuestVmx, Offer, VCPU_MEMORY, load, new_vcpu, offer, power_down, put};
