//! Chooses the mitigations of speculative-execution attacks that a CPU needs.
//!
//! The hypervisor reads the CPU's identification and the firmware's answers once at boot; this crate maps
//! them to a plan. An unaffected CPU gets a plan without cost. Plans protect the boundaries between guest and
//! hypervisor, and between consecutive VMs on a CPU; a guest's user space is protected by its own kernel.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod aarch64;
pub mod x86_64;
