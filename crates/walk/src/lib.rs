//! An x86 guest's own address translation, done in software: from a linear address to the
//! guest-physical one, or to the page fault that the processor would raise
//! (Intel SDM volume 3, chapter "Paging").
//!
//! The hypervisor needs it when it does what the processor would have done: to fetch the bytes of an
//! instruction that it emulates, and to reach that instruction's operands.
//!
//! - [`Paging`] says how the guest's registers configure translation;
//! - [`translate`] walks the tables for an access of any kind, sets accessed and dirty flags as the
//!   processor does, and gives the exact error code of a fault;
//! - [`trail`] finds where code lies, and keeps the way there, so that a look at a few words tells whether it is still
//!   the same.
//!
//! All tables lie in guest memory, reached through [`GuestMemory`]; whatever they hold is followed
//! for five levels at most, and can end in nothing worse than a page fault for the guest.
//!
//! # Left out
//! Protection keys and shadow stacks (CR4.PKE, CR4.PKS, CR4.CET): a hypervisor that uses this crate
//! must not offer them to its guests.
#![no_std]
#![forbid(unsafe_code)]

mod fault;
mod memory;
#[cfg(feature = "model")]
pub mod model;
mod paging;
mod trail;
mod translate;

pub use fault::{ErrorCode, PageFault};
pub use memory::GuestMemory;
pub use paging::{Features, Paging, Registers, Tables};
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
    /// Bits 51:12, the most that a physical address can have.
    pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
}

/// The bytes of the smallest page.
pub const PAGE: u64 = 4096;
