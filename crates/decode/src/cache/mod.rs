//! Decoded instructions, remembered.
//!
//! A decoded instruction is right for as long as the bytes that the guest would run are the same and mean the same. Two
//! schemes keep that so; which one is chosen when a cache is made.
//!
//! # Verify
//! [`Verify`] finds an entry by the guest-physical address of the code and the code size, and compares the bytes in guest
//! memory with those that were decoded, each time. So a hit costs a walk of the guest's tables and a comparison; and
//! there is nothing to keep in step: code may be written by any processor or device, tables may change, CR0, CR3, CR4
//! and EFER take part in each walk. Bytes beyond a page's end are compared through the translation of their own page.
//!
//! # Protect
//! [`Protect`] finds an entry by linear address, root of the tables and mode, and neither walks nor looks at the code. That is
//! right only because the caller keeps the guest from writing, unseen, the pages that decide: those of the code, and
//! those of every table on the way there (*Instruction caching for bhyve*, AsiaBSDCon 2015). A hit is cheaper; the price is
//! paid elsewhere: a second-stage fault for each write to such a page, accessed and dirty flags that the processor
//! sets itself among them, and pages of the second stage split.
//!
//! # Bounds
//! Both have [`SETS`] sets of [`WAYS`] entries and no other memory. A guest that runs through more code replaces its own
//! entries.

mod protect;
mod verify;

use crate::{Code, Decoded, Refusal};
pub use protect::{Protect, Protector};
use stile_walk::GuestMemory;
pub use verify::Verify;

/// Sets of each cache; a power of two.
pub const SETS: usize = 64;

/// Entries of a set.
pub const WAYS: usize = 4;

/// What a cache did, in counts since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Found, and still right.
    pub hits: u64,
    /// Not found: fetched and decoded.
    pub misses: u64,
    /// Entries that made room for others.
    pub evictions: u64,
    /// Verify: entries found whose code had changed; each is a miss, too.
    pub mismatches: u64,
    /// Protect: entries dropped because a page was written.
    pub dropped: u64,
}

impl Counts {
    const ZERO: Self = Self { hits: 0, misses: 0, evictions: 0, mismatches: 0, dropped: 0 };
}

/// A cache of either scheme, or none.
pub enum Cache {
    /// Every instruction is fetched and decoded.
    Off(Counts),
    /// See [`Verify`].
    Verify(Verify),
    /// See [`Protect`].
    Protect(Protect),
}

impl Cache {
    /// The decoded form of the instruction at `code`.
    #[inline]
    pub fn find<M: GuestMemory>(&mut self, code: &Code<'_, M>, protector: &mut impl Protector) -> Result<Decoded, Refusal> {
        match self {
            Self::Verify(cache) => cache.find(code),
            Self::Protect(cache) => cache.find(code, protector),
            Self::Off(counts) => {
                counts.misses += 1;
                code.decode()
            }
        }
    }

    /// A cache that remembers nothing.
    pub const fn off() -> Self {
        Self::Off(Counts::ZERO)
    }

    /// What it did so far.
    pub const fn counts(&self) -> Counts {
        match self {
            Self::Off(counts) => *counts,
            Self::Verify(cache) => cache.counts(),
            Self::Protect(cache) => cache.counts(),
        }
    }
}

/// The set of a key: code that is near lies in other sets, and so does code of the same offset in other pages.
#[inline]
const fn set_of(key: u64) -> usize {
    (key ^ key >> 6 ^ key >> 12) as usize % SETS
}
