//! Caches of decoded instructions.
//!
//! An entry is valid while the guest would execute the same bytes with the same meaning. Two schemes ensure that. Both look an entry up by
//! the linear address and the registers that affect translation and code size ([`Key`]).
//!
//! # Verify
//! [`Verify`] compares the guest's table entries that lead to the code, and the code's bytes, with their values at decode time: the code
//! still has the same guest-physical address, rights and bytes. A hit compares five or six words of guest memory, whose locations are
//! cached. No invalidation is needed: any processor or device may write code and tables at any time. For an instruction at the end of
//! a page, or under 32-bit paging, a walk and a comparison of the bytes replace the cached locations.
//!
//! Each process of a guest has a separate root table, and all of them map the same kernel. Code cached for another root is
//! compared through the new one, and its entry moves there without decoding.
//!
//! # Protect
//! [`Protect`] compares the key alone. It relies on the caller to trap writes to the pages that affect the entry: those of the code, and
//! those of every table on the walk (*Instruction caching for bhyve*, AsiaBSDCon 2015). A hit is slightly cheaper. In exchange every
//! write to such a page faults in the second stage, including the processor's own updates of accessed and dirty flags, and the second
//! stage needs small pages.
//!
//! # Bounds
//! Both have [`SETS`] sets of [`WAYS`] entries and no other memory. A guest with more code evicts its own entries. Without a cache, the
//! caller uses [`Code::decode`].

mod protect;
mod verify;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stile_x86_walk::Paging;

use crate::Code;
pub use protect::{Protect, Protector};
pub use verify::Verify;

/// Number of sets of a cache; a power of two.
pub const SETS: usize = 64;

/// Entries per set.
pub const WAYS: usize = 4;

/// Counters of a cache since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Found and valid.
    pub hits: u64,
    /// Not found: fetched and decoded.
    pub misses: u64,
    /// Entries replaced by others.
    pub evictions: u64,
    /// Verify: entries found with changed code; each also counts as a miss.
    pub mismatches: u64,
    /// Protect: entries dropped because a page was written.
    pub dropped: u64,
}

/// Counters of a [`Verify`] cache, which its owner counts up while others read them: each number is whole, and of some moment.
#[derive(Debug, Default)]
pub struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    mismatches: AtomicU64,
}

impl Counters {
    /// All zero.
    pub const fn new() -> Self {
        Self { hits: AtomicU64::new(0), misses: AtomicU64::new(0), evictions: AtomicU64::new(0), mismatches: AtomicU64::new(0) }
    }

    /// Counts an instruction that was fetched and decoded.
    pub fn count_miss(&self) {
        count(&self.misses);
    }

    /// Their values.
    pub fn counts(&self) -> Counts {
        let [hits, misses, evictions, mismatches] =
            [&self.hits, &self.misses, &self.evictions, &self.mismatches].map(|counter| counter.load(Relaxed));
        Counts { hits, misses, evictions, mismatches, dropped: 0 }
    }
}

/// Adds one. Only one CPU counts, so that this need not be one atomic operation.
#[inline(always)]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

impl Counts {
    const ZERO: Self = Self { hits: 0, misses: 0, evictions: 0, mismatches: 0, dropped: 0 };
}

/// The lookup key: everything except memory contents that determines the instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    linear: u64,
    /// [`Context`](crate::Context) and [`Paging::pointer`](stile_x86_walk::Paging::pointer).
    mode: u64,
}

impl Key {
    /// The key of a vacant entry.
    const VACANT: Self = Self { linear: 0, mode: u64::MAX };

    #[inline]
    fn new<M>(code: &Code<'_, M>) -> Self {
        let Code { context, linear, .. } = *code;
        Self { linear, mode: context.key | context.paging().pointer(linear) }
    }

    /// Whether it is a key of the same code under another root table. Under PAE paging PDPTEs take the root's place.
    fn differs_in_root(self, other: Self) -> bool {
        self.linear == other.linear && (self.mode ^ other.mode) & !Paging::ROOT == 0 && self.mode != Self::VACANT.mode
    }

    /// Returns the set. Nearby code, and code at the same offset of neighbouring pages, falls into different sets.
    #[inline]
    const fn set(self) -> usize {
        (self.linear ^ self.linear >> 10) as usize % SETS
    }
}

/// Round-robin replacement.
#[derive(Clone, Copy)]
struct Victim(u8);

impl Victim {
    /// The next way, from `first` on.
    fn next(&mut self, first: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        first + usize::from(self.0) % (WAYS - first)
    }
}
