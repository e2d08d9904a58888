//! Memory management of the Stile hypervisor, as pure logic: no access to system registers, TLBs or memory,
//! except through two small traits that the caller implements.
//!
//! * [`frames`]: physical memory allocator.
//! * [`first_touch`]: lazy initialization of guest memory.
//! * [`changes`]: pages of guest memory that change while a VM is copied.
//! * [`given`]: pages of guest memory that are in the guest's balloon.
//! * [`table`]: translation tables of Arm and Intel: second stage, and the hypervisor's own first stage.
//! * [`registers`]: values of the registers that control those tables.
//! * [`vmid`]: VMID allocation for VMs that run on several CPUs.
//!
//! Unless stated otherwise, "the manual" is the Arm Architecture Reference Manual for A-profile architecture;
//! its sections are cited by name.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod changes;
pub mod first_touch;
pub mod frames;
pub mod given;
pub mod registers;
pub mod table;
pub mod vmid;

/// Bytes in a page, a frame and a table: the 4 KiB translation granule.
pub const PAGE_SIZE: u64 = 4096;
