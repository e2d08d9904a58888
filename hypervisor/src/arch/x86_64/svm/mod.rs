//! AMD-V (crate `stile-svm`), in modules with the faces that [`contract`](super::contract) lists. Here "the manual" is the AMD64
//! Architecture Programmer's Manual, Volume 2.

mod amd_msrs;
pub mod apic_mode;
mod at_once;
pub mod basic;
pub mod block;
mod control_registers;
pub mod descriptors;
pub mod direct;
pub mod exit;
pub mod extension;
pub mod guest_state;
mod halt;
mod handler;
pub mod hyper_v;
pub mod kvm_clock;
mod length;
mod local;
pub mod nested;
pub mod paravirtual_eoi;
pub mod parts;
pub mod pauses;
mod permitted;
mod physical_interrupt;
pub mod place;
mod ports;
pub mod record;
pub mod second_stage;
pub mod state;
pub mod structure;
pub mod timer;
pub mod virtual_apic;
