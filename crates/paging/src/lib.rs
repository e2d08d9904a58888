//! Memory management of the Stile hypervisor, as pure logic: nothing here touches a system register,
//! a TLB or memory; what it needs of them it asks of its caller through two small traits.
//!
//! * [`frames`]: which physical memory is free, and who gets it.
//! * [`first_touch`]: which of a guest's memory has its contents yet.
//! * [`table`]: translation tables of Arm and Intel: second stage, and the hypervisor's own.
//! * [`registers`]: the values of the registers that control those tables.
//! * [`vmid`]: which VMID a VM uses, on however many CPUs at once.
//!
//! "The manual" in these pages is, but where they say otherwise, the Arm Architecture Reference Manual for A-profile architecture;
//! its sections are cited by name.
#![no_std]
#![forbid(unsafe_code)]
// Set by whoever runs `tests/vmid_interleavings.rs`.
#![allow(unexpected_cfgs, reason = "`loom` is known to Cargo.toml and that test only")]

#[cfg(test)]
extern crate std;

pub mod first_touch;
pub mod frames;
pub mod registers;
pub mod table;
pub mod vmid;

/// Bytes in a page, a frame and a table: the 4 KiB translation granule.
pub const PAGE_SIZE: u64 = 4096;
