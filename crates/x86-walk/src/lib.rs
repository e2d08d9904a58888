//! Page-table walks of x86 guests: translates a linear address to a guest-physical one, or to the page fault that the processor would
//! raise (Intel SDM volume 3, chapter "Paging").
//!
//! The instruction emulator fetches instructions and accesses their operands with it.
//!
//! - [`Paging`] is the translation regime that the guest's registers configure.
//! - [`translate`] walks the tables for an access, sets accessed and dirty flags as the processor does, and returns the exact error code
//!   of a fault.
//! - [`trail`] translates the address of an instruction and records the table entries used, so that comparing a few words shows whether
//!   the translation still holds.
//!
//! All tables lie in guest memory, accessed through [`GuestMemory`], and are untrusted. A walk follows at most five levels; garbage
//! can cause nothing worse than a page fault in the guest.
//!
//! # Limits
//! Protection keys and shadow stacks (CR4.PKE, CR4.PKS, CR4.CET) are not supported: the hypervisor must not offer them to guests.
#![no_std]
#![forbid(unsafe_code)]

mod fault;
mod memory;
#[cfg(feature = "model")]
pub mod model;
mod paging;
mod restarts;
mod trail;
mod translate;

pub use fault::{ErrorCode, PageFault};
pub use memory::GuestMemory;
pub use paging::{Features, Paging, Registers, Tables};
pub use restarts::Restarts;
pub use trail::{Trail, trail};
pub use translate::{Access, Kind, Translation, translate};

/// Bits of a paging-structure entry ("Formats of CR3 and Paging-Structure Entries").
pub(crate) mod entry {
    pub const PRESENT: u64 = 1 << 0;
    pub const WRITABLE: u64 = 1 << 1;
    pub const USER: u64 = 1 << 2;
    pub const ACCESSED: u64 = 1 << 5;
    pub const DIRTY: u64 = 1 << 6;
    /// The entry maps a page: reserved in entries of levels 4 and 5.
    pub const LARGE: u64 = 1 << 7;
    pub const NO_EXECUTE: u64 = 1 << 63;
    /// Bits 51:12: the architectural maximum of a physical address.
    pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
}

/// Size of the smallest page in bytes.
pub const PAGE: u64 = 4096;
