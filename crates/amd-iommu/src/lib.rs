//! Encodings of AMD's IOMMU (AMD I/O Virtualization Technology Specification, 48882, here "the manual"): device-table
//! entries, interrupt remapping, commands, and the event log, as far as functions with a host page table need them. The
//! hypervisor has the registers and the memory; crate `stile-paging` has the page tables.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod command;
mod commands;
mod device;
mod event;
mod log;
pub mod register;
mod remapping;
#[cfg(test)]
mod tests;

pub use commands::{CommandBuffer, CommandRegisters, PATIENCE};
pub use device::{DeviceEntry, DmaTables, RemappingTable};
pub use event::{Event, Kind};
pub use log::EventLog;
pub use remapping::{MESSAGES, RemappingEntry, message};

/// Number of entries of the command buffer and the event log: 256 of 16 bytes, the least of the manual.
pub const ENTRIES: usize = 256;
