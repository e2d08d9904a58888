//! Translation of instruction addresses, with the table entries used.

use crate::translate::walk;
use crate::{Access, GuestMemory, Kind, PAGE, PageFault, Paging};

/// The guest-physical address of code, and the table entries of its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trail {
    address: u64,
    /// Address and value of each entry, from the root down.
    entries: [(u64, u64); 5],
    /// Number of valid entries: 0 without paging.
    count: u8,
    /// Entries of four bytes: paging of 32 bits without PAE.
    narrow: bool,
}

impl Trail {
    /// The guest-physical address of the code.
    #[inline]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Address and value of each entry, from the root down. While all of them are unchanged, the same linear address with the same
    /// [`Paging::mode`] and [`Paging::pointer`] translates to the same address with the same rights.
    #[inline]
    pub fn entries(&self) -> &[(u64, u64)] {
        self.entries.get(..self.count.into()).unwrap_or(&[])
    }

    /// Whether the entries have four bytes.
    pub const fn narrow(&self) -> bool {
        self.narrow
    }

    /// The pages of the tables, from the root down.
    pub fn tables(&self) -> impl Iterator<Item = u64> {
        self.entries().iter().map(|(address, _)| address & !(PAGE - 1))
    }
}

/// Translates the address of an instruction fetch. Sets no accessed flags: the processor did so when it fetched the instruction that is
/// now emulated.
pub fn trail(memory: &impl GuestMemory, paging: &Paging, linear: u64, user: bool) -> Result<Trail, PageFault> {
    let access = Access { kind: Kind::Fetch, user, smap_override: false };
    Ok(match walk(memory, paging, linear, access)? {
        Some(path) => Trail { address: path.address(linear), entries: path.entries, count: path.count as u8, narrow: path.narrow },
        None => Trail { address: linear & u64::from(u32::MAX), entries: [(0, 0); 5], count: 0, narrow: false },
    })
}
