//! Chooses the mitigations of speculative-execution attacks that a CPU needs.
//!
//! The hypervisor reads the CPU's identification and the firmware's answers once at boot; this crate
//! maps them to a plan. A CPU that needs nothing gets a plan that costs nothing. What the plans
//! protect is the border between a guest and the hypervisor, and between one VM and the next on the
//! same CPU; a guest's own user space is its kernel's task.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod aarch64;
pub mod x86_64;
