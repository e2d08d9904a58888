//! The list of capabilities (PCI Local Bus Specification, 6.7).

use crate::ConfigSpace;
use crate::register::{CAPABILITIES, COMMAND, HAS_CAPABILITIES};

/// Capability IDs.
pub mod id {
    /// MSI.
    pub const MSI: u8 = 0x05;
    /// Vendor-specific.
    pub const VENDOR: u8 = 0x09;
    /// PCI Express.
    pub const EXPRESS: u8 = 0x10;
    /// MSI-X.
    pub const MSIX: u8 = 0x11;
}

/// The most capabilities that fit behind the header: longer lists are loops.
const MOST: usize = 48;

/// A capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its ID.
    pub id: u8,
    /// Its offset: 0x40 to 0xfc, a multiple of 4.
    pub offset: u8,
    /// Its first register.
    pub header: u32,
}

/// Iterates over a function's capabilities in the order of their list. Stops at a loop, or an address in the header.
pub fn capabilities(space: &impl ConfigSpace) -> impl Iterator<Item = Capability> {
    let present = space.read(COMMAND) & HAS_CAPABILITIES != 0;
    let mut next = if present { space.read(CAPABILITIES) as u8 & !3 } else { 0 };
    let mut seen = 0u64;
    core::iter::from_fn(move || {
        let bit = 1 << (next / 4);
        if next < 0x40 || seen & bit != 0 {
            return None;
        }
        seen |= bit;
        let header = space.read(next);
        let found = Capability { id: header as u8, offset: next, header };
        next = (header >> 8) as u8 & !3;
        Some(found)
    })
    .take(MOST)
}
