//! Decoded instructions, remembered.
//!
//! A decoded instruction is right for as long as the bytes that the guest would run are the same and mean the same. Two
//! schemes keep that so.
//!
//! Both find an entry by the linear address and what the registers say of translation and code size ([`Key`]).
//!
//! # Verify
//! [`Verify`] then looks whether the entries of the guest's tables that lead to the code, and the bytes there, are still what
//! they were: the code has the same guest-physical address, the same rights and the same bytes. That is five or six
//! words of guest memory for each hit, whose places are remembered; and there is nothing to keep in step: code and tables
//! may be written at any time, by any processor or device. An instruction at the end of a page, or under 32-bit paging, is
//! walked to and its bytes are compared.
//!
//! # Protect
//! [`Protect`] looks at nothing. It is right only because the caller keeps the guest from writing, unseen, the pages
//! that decide: those of the code, and those of every table on the way there (*Instruction caching for bhyve*,
//! AsiaBSDCon 2015). A hit is a little cheaper; the price is paid elsewhere: a second-stage fault for each write to such
//! a page, accessed and dirty flags that the processor sets itself among them, and pages of the second stage split.
//!
//! # Bounds
//! Both have [`SETS`] sets of [`WAYS`] entries and no other memory. A guest that runs through more code replaces its own
//! entries. A caller that wants no cache calls [`Code::decode`].

mod protect;
mod verify;

use crate::Code;
pub use protect::{Protect, Protector};
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

/// What an entry is found by: all that decides what an instruction is, beside the contents of memory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    linear: u64,
    /// [`Context`](crate::Context) and [`Paging::pointer`](stile_walk::Paging::pointer).
    mode: u64,
}

impl Key {
    /// That of no instruction.
    const VACANT: Self = Self { linear: 0, mode: u64::MAX };

    #[inline]
    fn new<M>(code: &Code<'_, M>) -> Self {
        let Code { context, linear, .. } = *code;
        Self { linear, mode: context.key | context.paging().pointer(linear) }
    }

    /// Code that is near lies in other sets, and so does code of the same offset in neighbouring pages.
    #[inline]
    const fn set(self) -> usize {
        (self.linear ^ self.linear >> 10) as usize % SETS
    }
}

/// Which entry of a full set makes room: each in turn.
#[derive(Clone, Copy)]
struct Victim(u8);

impl Victim {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_add(1);
        usize::from(self.0) % WAYS
    }
}
