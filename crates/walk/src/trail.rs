//! The walk for code, and the way that it took.

use crate::translate::walk;
use crate::{Access, GuestMemory, Kind, PAGE, PageFault, Paging};

/// Where code lies, and the entries of the tables that lead there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trail {
    address: u64,
    /// Address and value of each entry, from the root on.
    entries: [(u64, u64); 5],
    count: u8,
    /// Entries of four bytes.
    narrow: bool,
}

impl Trail {
    /// The trail that leads to address 0 by no table, as without paging.
    pub const NONE: Self = Self { address: 0, entries: [(0, 0); 5], count: 0, narrow: false };

    /// The guest-physical address of the code.
    #[inline]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The pages of the tables, from the root on.
    pub fn tables(&self) -> impl Iterator<Item = u64> {
        self.entries.into_iter().take(self.count.into()).map(|(address, _)| address & !(PAGE - 1))
    }

    /// Does each entry still hold what it held? Then the same linear address, by the same root and the same
    /// [`Paging::fetch_mode`], leads to the same place with the same rights.
    #[inline(always)]
    pub fn unchanged(&self, memory: &impl GuestMemory) -> bool {
        let same = |(address, value): (u64, u64)| memory.read_u64(address) == Some(value);
        let [a, b, c, d, _] = self.entries;
        match self.count {
            // A kernel's code, in pages of 2 MiB or of 4 KiB, under four levels.
            3 => same(a) && same(b) && same(c),
            4 => same(a) && same(b) && same(c) && same(d),
            _ => self.unchanged_otherwise(memory),
        }
    }

    #[cold]
    fn unchanged_otherwise(&self, memory: &impl GuestMemory) -> bool {
        self.entries.iter().take(self.count.into()).all(|&(address, value)| match self.narrow {
            true => memory.read_u32(address).map(u64::from) == Some(value),
            false => memory.read_u64(address) == Some(value),
        })
    }
}

/// Where the code at `linear` lies, or the fault of fetching it. Marks no entry as accessed: the processor did
/// so when it fetched the instruction that is now emulated.
pub fn trail(memory: &impl GuestMemory, paging: &Paging, linear: u64, user: bool) -> Result<Trail, PageFault> {
    let access = Access { kind: Kind::Fetch, user, smap_override: false };
    Ok(match walk(memory, paging, linear, access)? {
        Some(path) => Trail { address: path.address(linear), entries: path.entries, count: path.count as u8, narrow: path.narrow },
        None => Trail { address: linear & u64::from(u32::MAX), ..Trail::NONE },
    })
}
