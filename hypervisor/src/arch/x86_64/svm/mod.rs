//! AMD-V: what differs from VMX, in modules with the same faces (crate `stile-svm`). Here "the manual" is the AMD64
//! Architecture Programmer's Manual, Volume 2.

mod amd_msrs;
pub mod basic;
pub mod block;
mod control_registers;
pub mod descriptors;
pub mod direct;
pub mod exit;
pub mod extension;
pub mod guest_state;
mod handler;
pub mod hyper_v;
pub mod kvm_clock;
mod length;
pub mod nested;
pub mod parts;
pub mod pauses;
pub mod place;
pub mod record;
pub mod second_stage;
pub mod state;
pub mod structure;
pub mod virtual_apic;
