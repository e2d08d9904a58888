//! Memory as far as a map has it: tables of firmware at other addresses count as missing.

use core::ops::Range;

use crate::Memory;

/// The most times that all ranges are looked at for one table. Once is enough for neighbours in ascending order. In any other order, each
/// look may find only one of thousands.
const MOST_LOOKS: usize = 16;

/// Memory of which only some ranges are read.
#[derive(Clone, Debug)]
pub struct Within<M, R> {
    memory: M,
    ranges: R,
}

impl<M, R> Within<M, R> {
    /// The ranges may be in any order, touch and overlap. Bytes in more than 16 ranges that descend count as missing.
    pub const fn new(memory: M, ranges: R) -> Self {
        Within { memory, ranges }
    }
}

impl<M: Memory, R: Iterator<Item = Range<u64>> + Clone> Memory for Within<M, R> {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let end = address.checked_add(len as u64)?;
        covers(&self.ranges, address..end).then(|| self.memory.bytes(address, len))?
    }
}

/// Whether `ranges` together contain all of `wanted`.
fn covers(ranges: &(impl Iterator<Item = Range<u64>> + Clone), wanted: Range<u64>) -> bool {
    let mut start = wanted.start;
    for _ in 0..MOST_LOOKS {
        if start >= wanted.end {
            break;
        }
        let before = start;
        for range in ranges.clone() {
            if range.contains(&start) {
                start = range.end;
            }
        }
        if start == before {
            break;
        }
    }
    start >= wanted.end
}

/// Memory of which some ranges are not read.
#[derive(Clone, Debug)]
pub struct Without<M, R> {
    memory: M,
    ranges: R,
}

impl<M, R> Without<M, R> {
    /// The ranges may be in any order, touch and overlap.
    pub const fn new(memory: M, ranges: R) -> Self {
        Without { memory, ranges }
    }
}

impl<M: Memory, R: Iterator<Item = Range<u64>> + Clone> Memory for Without<M, R> {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let end = address.checked_add(len as u64)?;
        let mut ranges = self.ranges.clone().filter(|range| !range.is_empty());
        if ranges.any(|range| range.start < end && address < range.end) { None } else { self.memory.bytes(address, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::Flat;
    use core::cell::Cell;
    use std::vec;

    #[test]
    fn memory_of_several_ranges_is_read() {
        let memory = Within::new(Flat(vec![7; 0x5000]), [0x2000..0x3000, 0x4800..0x6000, 0x1000..0x2000, 0x1800..0x2800].into_iter());
        let is = |range: Range<u64>| memory.bytes(range.start, (range.end - range.start) as usize).is_some();
        assert!(is(0x1000..0x3000) && is(0x1fff..0x2001) && is(0x4800..0x5000));
        assert!(!is(0xfff..0x1001) && !is(0x2fff..0x3001) && !is(0x3000..0x3001), "ranges lack it");
        assert!(!is(0x4fff..0x5001), "memory lacks it");
        assert_eq!(memory.bytes(u64::MAX, 2), None);
    }

    /// Thousands of neighbours, of 16 bytes each: a count of ranges looked at, for one read.
    #[test]
    fn many_ranges_are_looked_at_a_few_times() {
        const COUNT: u64 = 4096;
        let (looks, len) = (Cell::new(0), 16 * COUNT as usize);
        let ascending = (0..COUNT).map(|at| 16 * at..16 * (at + 1));
        let count = |_: &Range<u64>| looks.set(looks.get() + 1);
        assert!(Within::new(Flat(vec![7; len]), ascending.clone().inspect(count)).bytes(0, len).is_some());
        assert_eq!(looks.take(), COUNT);
        let descending = Within::new(Flat(vec![7; len]), ascending.rev().inspect(count));
        assert_eq!(descending.bytes(0, len), None);
        assert_eq!(looks.take(), MOST_LOOKS as u64 * COUNT);
        assert!(descending.bytes(0, 16 * MOST_LOOKS).is_some());
    }

    #[test]
    fn memory_outside_ranges_is_read() {
        let memory = Without::new(Flat(vec![7; 0x5000]), [0x2000..0x3000, 0x1800..0x2800, 0x100..0x100].into_iter());
        let is = |range: Range<u64>| memory.bytes(range.start, (range.end - range.start) as usize).is_some();
        assert!(is(0..0x1800) && is(0x3000..0x5000));
        assert!(!is(0x1000..0x1801) && !is(0x2fff..0x3001) && !is(0x2900..0x2901) && !is(0..0x5000), "in a range");
        assert_eq!(memory.bytes(u64::MAX, 2), None);
    }
}
