//! Memory as far as a map has it: tables of firmware at other addresses count as missing.

use core::ops::Range;

use crate::Memory;

/// Memory of which only some ranges are read.
#[derive(Clone, Debug)]
pub struct Within<M, R> {
    memory: M,
    ranges: R,
}

impl<M, R> Within<M, R> {
    /// The ranges may be in any order, touch and overlap.
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

/// Whether ranges together have all of a range.
fn covers(ranges: &(impl Iterator<Item = Range<u64>> + Clone), wanted: Range<u64>) -> bool {
    let mut start = wanted.start;
    while start < wanted.end {
        // It ends behind `start`: each range is used at most once.
        let Some(next) = ranges.clone().find(|range| range.contains(&start)) else { return false };
        start = next.end;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::Flat;
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
}
