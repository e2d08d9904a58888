//! The inverse map of a shadow, from L1's physical addresses to L2's.

/// A contiguous range of L1 addresses that is, or was, mapped at an L2 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    l1: u64,
    l2: u64,
    size: u64,
}

impl Extent {
    const fn end(self) -> u64 {
        self.l1 + self.size
    }

    /// Merges both, if they are adjacent or overlap, with the same offset from L1 to L2.
    fn joined(self, other: Self) -> Option<Self> {
        let is_same_way = self.l1.wrapping_sub(self.l2) == other.l1.wrapping_sub(other.l2);
        let do_touch = self.l1 <= other.end() && other.l1 <= self.end();
        let (l1, l2) = (self.l1.min(other.l1), self.l2.min(other.l2));
        (is_same_way && do_touch).then(|| Self { l1, l2, size: self.end().max(other.end()) - l1 })
    }
}

/// Up to `N` extents. Beyond that, an L1 address is assumed to be mapped anywhere.
///
/// An extent stays when its range is unmapped: the map is conservative. Addresses are below 2^48.
#[derive(Debug)]
pub(super) struct Extents<const N: usize> {
    list: [Extent; N],
    length: usize,
    /// There were more extents than `N`.
    overflowed: bool,
}

impl<const N: usize> Extents<N> {
    pub const fn new() -> Self {
        Self { list: [Extent { l1: 0, l2: 0, size: 0 }; N], length: 0, overflowed: false }
    }

    /// Adds the `size` bytes at L1 address `l1`, mapped at L2 address `l2`.
    pub fn add(&mut self, l1: u64, l2: u64, size: u64) {
        let new = Extent { l1, l2, size };
        let known = self.list.iter_mut().take(self.length);
        for extent in known {
            if let Some(joined) = extent.joined(new) {
                *extent = joined;
                return;
            }
        }
        match self.list.get_mut(self.length) {
            Some(free) => {
                *free = new;
                self.length += 1;
            }
            None => self.overflowed = true,
        }
    }

    /// The L2 ranges (start, size) where the `size` bytes at L1 address `l1` may be mapped. `None` if they
    /// may be mapped anywhere.
    pub fn find(&self, l1: u64, size: u64) -> Option<impl Iterator<Item = (u64, u64)> + use<N>> {
        if self.overflowed {
            return None;
        }
        let end = l1.saturating_add(size);
        let found = self.list.into_iter().take(self.length).filter_map(move |extent| {
            let (from, to) = (extent.l1.max(l1), extent.end().min(end));
            (from < to).then(|| (extent.l2 + (from - extent.l1), to - from))
        });
        Some(found)
    }

    /// Clears the map after everything is unmapped.
    pub fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn find<const N: usize>(extents: &Extents<N>, l1: u64, size: u64) -> Option<Vec<(u64, u64)>> {
        extents.find(l1, size).map(Iterator::collect)
    }

    #[test]
    fn adjacent_extents_are_merged() {
        let mut extents = Extents::<2>::new();
        for n in [0, 2, 1, 1] {
            extents.add(0x4000_0000 + n * 0x1000, 0x8000_0000 + n * 0x1000, 0x1000);
        }
        assert_eq!(find(&extents, 0x4000_0000, 0x10_0000), Some(Vec::from([(0x8000_0000, 0x2000), (0x8000_2000, 0x1000)])));
        assert_eq!(find(&extents, 0x4000_1800, 0x400), Some(Vec::from([(0x8000_1800, 0x400)])));
        assert_eq!(find(&extents, 0x3000_0000, 0x1000), Some(Vec::new()));
    }

    #[test]
    fn one_page_at_two_places() {
        let mut extents = Extents::<2>::new();
        extents.add(0x1000, 0x7000, 0x1000);
        extents.add(0x1000, 0x9000, 0x1000);
        assert_eq!(find(&extents, 0, 0x10_0000), Some(Vec::from([(0x7000, 0x1000), (0x9000, 0x1000)])));
        // One extent too many: from here on every address may be mapped anywhere.
        extents.add(0x1000, 0xb000, 0x1000);
        assert_eq!(find(&extents, 0x5000, 1), None);
        extents.clear();
        assert_eq!(find(&extents, 0, u64::MAX), Some(Vec::new()));
    }
}
