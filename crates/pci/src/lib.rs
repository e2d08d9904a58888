//! PCI functions that a VM owns: their addresses, and the model of configuration space and MSI-X tables that
//! the VM sees in the place of the physical ones (PCI Local Bus Specification 3.0, chapters 6 and 6.8; PCI
//! Express Base Specification, chapter 7).
//!
//! The crate is plain data and pure logic. The hypervisor implements [`ConfigSpace`] on the host bridge, makes
//! a [`VirtualFunction`] of each function that it assigns, and does what the [`Effect`] of a write asks for.
//!
//! # What a guest sees
//! - A function with a type 0 header, at an address of the guest's bridge. Other functions read as all ones.
//! - BARs that it sizes and moves as it likes. I/O BARs are absent. Sub-page BARs have the size of a page.
//! - The capabilities MSI-X, PCI Express and vendor-specific. Others, and extended configuration space, are
//!   absent. Only the enable and mask bits of MSI-X can be written.
//! - An MSI-X table of at most [`MAX_VECTORS`] vectors, in memory of the hypervisor's.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod address;
mod bar;
mod capability;
mod faults;
mod function;
mod kept;
mod misses;
mod msix;
mod place;
pub mod register;
mod reset;
mod scan;
mod silence;
#[cfg(test)]
mod tests;
mod trial;
mod window;

pub use address::{Address, ParseError};
pub use bar::{BARS, Bar, probe_bars};
pub use capability::{Capability, capabilities, id};
pub use faults::{Access, Faults, MOST_FAULTS, MOST_REPORTS, Verdict};
pub use function::{Effect, Refusal, VirtualFunction};
pub use kept::{Immovable, Kept};
pub use misses::{Action, Misses};
pub use msix::{MAX_VECTORS, Msix, Table, Vector};
pub use place::{Place, Space, Unmapped, place};
pub use reset::{Reset, find_reset, is_virtio, virtio_common};
pub use scan::functions;
pub use silence::{silence, stop_master, visit_decoded};
pub use trial::answers_at;
pub use window::Window;

/// The smallest part of a BAR that can be mapped.
pub const PAGE: u64 = 4096;

/// A function's physical configuration space. Registers are offsets below 256 that are multiples of 4.
pub trait ConfigSpace {
    /// Reads a register.
    fn read(&self, register: u8) -> u32;
    /// Writes a register.
    fn write(&mut self, register: u8, value: u32);
}
