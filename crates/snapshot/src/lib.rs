//! Snapshots of virtual machines.
//!
//! | layer | module | between |
//! | --- | --- | --- |
//! | sections of a file, each with a checksum | [`section`] | the command and the disk |
//! | records: vCPUs, interrupt controller, devices | [`aarch64`], [`gic`], [`device`]; [`x86_64`], [`pc`] | one hypervisor and another; the command does not decode them |
//! | pieces of RAM in a window of memory | [`pages`] | the hypervisor and the command |
//!
//! A snapshot is untrusted input. Decoding checks form and bounds; [`pstate`] and the models that take the records
//! (crates `vgic`, `apic`, `device`) reduce values to those that the guest itself could have produced, so that a hostile
//! snapshot is no more than a hostile guest.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod aarch64;
pub mod countdown;
pub mod device;
pub mod gic;
pub mod pages;
pub mod pc;
pub mod pstate;
pub mod record;
pub mod section;
pub mod x86_64;
pub mod zeros;

pub use record::{decode, encode};
