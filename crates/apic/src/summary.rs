//! Summaries of 256-bit sets.

use crate::{Pages, Vectors};

/// Bit mask of the nonzero words among the eight words of a set (IRR, ISR). Maintained by the set's owner, to
/// find the highest vector without scanning all words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary(u8);

impl Summary {
    pub(crate) const EMPTY: Self = Self(0);

    /// The summary of a set in the page.
    pub(crate) fn of(pages: &Pages, set: u32) -> Self {
        Self((0..8).filter(|&i| pages.get(set + 16 * i) != 0).fold(0, |words, i| words | 1 << i))
    }

    #[inline(always)]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Accounts for vectors added to the set.
    pub(crate) fn extend(&mut self, vectors: Vectors) {
        self.0 |= (0..8).filter(|&i| vectors.word(i) != 0).fold(0, |words, i| words | 1 << i);
    }

    /// The highest vector of the set.
    #[inline(always)]
    pub(crate) fn highest(self, pages: &Pages, set: u32) -> Option<u8> {
        let i = self.0.checked_ilog2()?;
        Some((32 * i + pages.get(set + 16 * i).checked_ilog2()?) as u8)
    }

    /// Adds a vector to the set.
    #[inline(always)]
    pub(crate) fn insert(&mut self, pages: &Pages, set: u32, vector: u8) {
        pages.insert(set, vector);
        self.0 |= 1 << (vector >> 5);
    }

    /// Removes a vector from the set.
    #[inline(always)]
    pub(crate) fn remove(&mut self, pages: &Pages, set: u32, vector: u8) {
        if pages.remove(set, vector) == 0 {
            self.0 &= !(1 << (vector >> 5));
        }
    }
}
