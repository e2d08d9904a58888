//! Intel's VMX (crate `stile-nested-vmx` has its fields and controls), in modules with the faces that [`contract`](super::contract)
//! lists. Here "the manual" is the Intel 64 and IA-32 Architectures Software Developer's Manual.

mod access_page;
pub mod apic_mode;
pub mod basic;
pub mod block;
pub mod descriptors;
pub mod direct;
pub mod exit;
pub mod extension;
mod gate;
pub mod guest_state;
mod handler;
mod host_state;
pub mod hyper_v;
pub mod kvm_clock;
mod msr_bitmap;
pub mod nested;
pub mod paravirtual_eoi;
pub mod parts;
pub mod pauses;
pub mod place;
pub mod record;
pub mod second_stage;
pub mod state;
pub mod structure;
pub mod timer;
pub mod virtual_apic;
mod vmcs;
