//! Levels of the walk, and pieces of the input address space.

use crate::PAGE_SIZE;

/// Entries in a table of 4 KiB.
pub const ENTRIES: usize = 512;

/// Bits of input address that one level resolves.
const STRIDE: u32 = 9;

/// A level of the table walk, with the manual's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Each entry covers 512 GiB; there are no blocks.
    L0 = 0,
    /// Each entry covers 1 GiB.
    L1 = 1,
    /// Each entry covers 2 MiB.
    L2 = 2,
    /// Each entry is a page of 4 KiB.
    L3 = 3,
}

impl Level {
    /// The lowest bit of the input address that an entry resolves.
    #[must_use]
    pub const fn shift(self) -> u32 {
        PAGE_SIZE.trailing_zeros() + STRIDE * (3 - self as u32)
    }

    /// Bytes that one entry covers.
    #[must_use]
    pub const fn size(self) -> u64 {
        1 << self.shift()
    }

    /// The next lower level, to whose tables this level's table descriptors point. `None` for pages.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self {
            Self::L0 => Some(Self::L1),
            Self::L1 => Some(Self::L2),
            Self::L2 => Some(Self::L3),
            Self::L3 => None,
        }
    }

    /// Whether an entry of this level can be a leaf: a page or a block.
    #[must_use]
    pub const fn has_leaves(self) -> bool {
        !matches!(self, Self::L0)
    }
}

/// A range of addresses, `start..end`. Both are at most 2^48, so nothing here overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub start: u64,
    pub end: u64,
}

impl Span {
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// The common part, or `None` if it is empty.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }
}

/// The part of a table entry that an operation on a span affects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Index of the entry in its table.
    pub index: usize,
    /// The entry's whole range.
    pub entry: Span,
    /// The part of it within the span. Never empty.
    pub covered: Span,
}

impl Piece {
    /// Whether the operation affects the whole entry.
    pub fn is_whole(&self) -> bool {
        self.covered == self.entry
    }
}

/// The entries that `span` overlaps in a table of `level` whose first entry covers `base`.
///
/// `base` must not lie above `span`, nor may `span` exceed the table.
pub(super) fn pieces(level: Level, base: u64, span: Span) -> impl Iterator<Item = Piece> {
    let size = level.size();
    let first = span.start & !(size - 1);
    let count = (span.end - first).div_ceil(size);
    (0..count).map(move |n| {
        let start = first + n * size;
        let entry = Span { start, end: start + size };
        let covered = Span { start: start.max(span.start), end: entry.end.min(span.end) };
        Piece { index: ((start - base) >> level.shift()) as usize, entry, covered }
    })
}
