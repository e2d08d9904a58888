//! Ranges of physical memory, and sets of them.

use super::error::Error;
use crate::PAGE_SIZE;
use heapless::Vec;

/// A range of physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
}

impl Region {
    /// The exclusive end, or an error if it exceeds 64 bits.
    pub(super) fn end(self) -> Result<u64, Error> {
        self.base.checked_add(self.size).ok_or(Error::InvalidRegion)
    }

    /// The frames wholly within, or `None` if there are none.
    pub(super) fn inner(self) -> Result<Option<Self>, Error> {
        let end = self.end()? & !(PAGE_SIZE - 1);
        let base = self.base.next_multiple_of_page()?;
        Ok((base < end).then(|| Self { base, size: end - base }))
    }

    /// The frames at least partly within, or `None` if there are none. The last frame of all, whose end is no address, is never among them,
    /// nor among those of [`inner`](Self::inner).
    pub(super) fn outer(self) -> Result<Option<Self>, Error> {
        let end = self.end()?.next_multiple_of_page().unwrap_or(!(PAGE_SIZE - 1));
        let base = self.base & !(PAGE_SIZE - 1);
        Ok((self.size != 0 && base < end).then(|| Self { base, size: end - base }))
    }

    /// Checks that the range is of whole frames, not empty, and doesn't wrap around.
    pub(super) fn check(self) -> Result<Self, Error> {
        if !self.base.is_multiple_of(PAGE_SIZE) || !self.size.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        if self.size == 0 {
            return Err(Error::InvalidRegion);
        }
        self.end().map(|_| self)
    }
}

/// Rounding with overflow check.
trait ToPage: Sized {
    fn next_multiple_of_page(self) -> Result<Self, Error>;
}

impl ToPage for u64 {
    fn next_multiple_of_page(self) -> Result<Self, Error> {
        self.checked_next_multiple_of(PAGE_SIZE).ok_or(Error::InvalidRegion)
    }
}

/// `start..end`, not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub start: u64,
    pub end: u64,
}

impl Range {
    pub fn size(self) -> u64 {
        self.end - self.start
    }

    /// The first address in the range congruent to `address` modulo `modulus`, a power of two.
    pub fn first_congruent(self, address: u64, modulus: u64) -> Option<u64> {
        let gap = address.wrapping_sub(self.start) & (modulus - 1);
        self.start.checked_add(gap).filter(|&start| start < self.end)
    }
}

impl From<Region> for Range {
    /// `region` must have passed [`Region::check`].
    fn from(region: Region) -> Self {
        Self { start: region.base, end: region.base.saturating_add(region.size) }
    }
}

/// A set of addresses, stored as at most `N` ranges: sorted, disjoint and not adjacent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RangeSet<const N: usize> {
    ranges: Vec<Range, N>,
}

impl<const N: usize> RangeSet<N> {
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    pub fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().copied()
    }

    /// Number of addresses in the set.
    pub fn total(&self) -> u64 {
        self.iter().map(Range::size).sum()
    }

    pub fn overlaps(&self, range: Range) -> bool {
        self.iter().any(|r| r.start < range.end && range.start < r.end)
    }

    pub fn contains(&self, range: Range) -> bool {
        self.iter().any(|r| r.start <= range.start && range.end <= r.end)
    }

    /// The part of the set within the frames of `regions`; `None` if that is empty or has more than `N` ranges.
    pub fn within(&self, regions: &[Region]) -> Option<Self> {
        let mut part = Self::new();
        for region in regions {
            let Ok(Some(region)) = region.inner().map(|region| region.map(Range::from)) else { continue };
            for range in self.iter() {
                let common = Range { start: range.start.max(region.start), end: range.end.min(region.end) };
                if common.start < common.end {
                    part.insert(common).ok()?;
                }
            }
        }
        (!part.ranges.is_empty()).then_some(part)
    }

    /// Adds a range, which may overlap the set. The set is unchanged on an error.
    pub fn insert(&mut self, mut range: Range) -> Result<(), Error> {
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let beyond = self.ranges.partition_point(|r| r.start <= range.end);
        if first == beyond {
            return self.ranges.insert(first, range).map_err(|_| Error::TooManyRegions);
        }
        // Merge overlapping and adjacent ranges.
        for _ in first..beyond {
            let touched = self.ranges.remove(first);
            range.start = range.start.min(touched.start);
            range.end = range.end.max(touched.end);
        }
        self.ranges.insert(first, range).map_err(|_| Error::TooManyRegions)
    }

    /// Removes a range, which need not be wholly in the set. The set is unchanged on an error.
    pub fn remove(&mut self, range: Range) -> Result<(), Error> {
        let splits = |r: &Range| r.start < range.start && range.end < r.end;
        if self.ranges.is_full() && self.ranges.iter().any(splits) {
            return Err(Error::TooManyRegions);
        }
        let mut index = self.ranges.partition_point(|r| r.end <= range.start);
        while let Some(&old) = self.ranges.get(index).filter(|r| r.start < range.end) {
            self.ranges.remove(index);
            let before = Range { start: old.start, end: range.start };
            let after = Range { start: range.end, end: old.end };
            for rest in [before, after] {
                if rest.start < rest.end {
                    self.ranges.insert(index, rest).map_err(|_| Error::TooManyRegions)?;
                    index += 1;
                }
            }
        }
        Ok(())
    }
}
