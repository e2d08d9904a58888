//! VMX for guest hypervisors (L1) as pure logic: the semantics of their VMCSs, VMX instructions, VM entries and VM exits. No access to
//! the processor's VMCS or to memory; everything that L1 controls is untrusted.
//!
//! - [`Field`], [`fields`]: VMCS fields, their encodings and properties
//! - [`controls`]: bits of the control fields
//! - [`Vmcs12`]: a VMCS of L1, with change tracking
//! - [`Capabilities`]: the VMX capability MSRs that L1 reads
//! - [`checks`]: the rules of a VM entry
//! - [`intercepts`]: exits of L2 that L1 asked for
//! - [`invalidate`]: operands of INVEPT and INVVPID
//! - [`nmi_window`]: the window in which a pending NMI can be delivered, for any guest
//! - [`operand`]: operands of VMX instructions
//! - [`StringIo`]: elements of INS and OUTS
//! - [`virtual_apic`]: the MSRs of a virtual APIC, and L2's TPR threshold
//! - [`PreemptionTimer`]: the VMX-preemption timer across exits that L1 does not see
//! - [`enlightened`], [`hyper_v`]: Hyper-V's VMCS in memory, and what L1 needs to find it
//! - [`VmxResult`]: outcomes of VMX instructions
//! - [`shadowed`], [`adopted`]: fields that each L1, and one L1, accesses without exits
//! - [`ept`], [`shadow`]: walks of L1's extended page tables, and tables that combine them with L0's
//!
//! VMCS12 is L1's VMCS for its guest L2; VMCS02 is the one that the processor runs L2 with. "SDM" is the *Intel 64 and IA-32 Architectures
//! Software Developer's Manual*, volume 3; sections are cited by name, or by the number they have in most editions.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod adopted;
pub mod capability;
pub mod checks;
pub mod controls;
pub mod enlightened;
pub mod ept;
mod field;
pub mod fields;
mod group;
pub mod hyper_v;
pub mod intercepts;
pub mod invalidate;
#[cfg(feature = "model")]
pub mod model;
mod nmi_window;
pub mod operand;
mod preemption_timer;
mod result;
mod set;
pub mod shadow;
pub mod shadowed;
mod string_io;
pub mod virtual_apic;
pub mod vmcs12;

pub use capability::Capabilities;
pub use field::{Field, Kind, Width};
pub use group::{Group, Groups};
pub use nmi_window::nmi_window;
pub use preemption_timer::PreemptionTimer;
pub use result::{InstructionError, VmxResult};
pub use set::FieldSet;
pub use string_io::StringIo;
pub use vmcs12::{AccessError, Vmcs12};
