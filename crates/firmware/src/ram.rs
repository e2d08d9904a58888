//! RAM by the memory map of a PC's boot loader or firmware, whose entries may be in any order, overlap, and begin or end within a page.

use core::ops::Range;

use heapless::Vec;

/// Size of a page in bytes.
const PAGE: u64 = 4096;

/// Returns the whole pages below `end` that entries describe as RAM and no entry as anything else, in ascending order; neighbours are one range.
/// An entry is a range of addresses and whether it is RAM. If there are more than `N` ranges, smaller ones are dropped.
pub fn ram<const N: usize>(entries: impl Iterator<Item = (Range<u64>, bool)> + Clone, end: u64) -> Vec<Range<u64>, N> {
    let mut ram = Vec::new();
    entries.clone().filter(|(_, is_ram)| *is_ram).for_each(|(range, _)| insert(&mut ram, range.start..range.end.min(end)));
    entries.filter(|(_, is_ram)| !is_ram).for_each(|(range, _)| remove(&mut ram, &range));
    for range in &mut ram {
        // A range that ends at the end of addresses loses its last page.
        *range = range.start.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)..range.end & !(PAGE - 1);
    }
    ram.retain(|range| !range.is_empty());
    ram
}

/// Adds a range, merged with those that it touches.
fn insert<const N: usize>(ranges: &mut Vec<Range<u64>, N>, mut range: Range<u64>) {
    if range.is_empty() {
        return;
    }
    ranges.retain(|other| {
        let touches = other.start <= range.end && range.start <= other.end;
        if touches {
            range = range.start.min(other.start)..range.end.max(other.end);
        }
        !touches
    });
    push(ranges, range);
}

/// Removes a range.
fn remove<const N: usize>(ranges: &mut Vec<Range<u64>, N>, gone: &Range<u64>) {
    if gone.is_empty() {
        return;
    }
    let mut at = 0;
    while let Some(range) = ranges.get(at).cloned() {
        if gone.end <= range.start || range.end <= gone.start {
            at += 1;
            continue;
        }
        let _ = ranges.remove(at);
        // Neither overlaps `gone`, wherever it is put.
        for rest in [range.start..gone.start, gone.end..range.end] {
            if !rest.is_empty() {
                push(ranges, rest);
            }
        }
    }
}

/// Adds a range that touches no other one, in its place. If there is no room, the smallest range is dropped.
fn push<const N: usize>(ranges: &mut Vec<Range<u64>, N>, range: Range<u64>) {
    let size = |range: &Range<u64>| range.end - range.start;
    if ranges.is_full()
        && let Some((least, other)) = ranges.iter().enumerate().min_by_key(|(_, other)| size(other))
    {
        if size(other) >= size(&range) {
            return;
        }
        let _ = ranges.remove(least);
    }
    let at = ranges.iter().position(|other| other.start > range.start).unwrap_or(ranges.len());
    let _ = ranges.insert(at, range);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn of<const N: usize>(entries: &[(Range<u64>, bool)]) -> std::vec::Vec<Range<u64>> {
        ram::<N>(entries.iter().cloned(), 1 << 40).to_vec()
    }

    #[test]
    fn neighbours_and_overlaps_are_merged() {
        let map = [(0x8000..0x9000, true), (0x1800..0x2800, true), (0x1000..0x1800, true), (0x2000..0x4000, true), (0x9000..0x9000, true)];
        assert_eq!(of::<8>(&map), [0x1000..0x4000, 0x8000..0x9000]);
    }

    #[test]
    fn other_entries_take_precedence() {
        let map = [(0x3800..0x4800, false), (0x1000..0x1_0000, true), (0x8000..0x8001, false), (0xf000..0x2_0000, false)];
        assert_eq!(of::<8>(&map), [0x1000..0x3000, 0x5000..0x8000, 0x9000..0xf000]);
        assert_eq!(of::<8>(&[(0..1 << 30, true), (0..u64::MAX, false)]), []);
        assert_eq!(
            of::<8>(&[(Range { start: 0x2000, end: 0x1000 }, false), (0x1000..0x3000, true)]),
            vec![0x1000..0x3000],
            "it is no range"
        );
    }

    #[test]
    fn only_whole_pages_below_the_end_count() {
        assert_eq!(of::<8>(&[(0x1001..0x1fff, true), (0x2fff..0x4001, true)]), vec![0x3000..0x4000]);
        assert_eq!(of::<8>(&[((1 << 40) - 0x1800..u64::MAX, true)]), vec![(1 << 40) - 0x1000..1 << 40]);
        assert_eq!(ram::<8>([(u64::MAX - 8..u64::MAX, true)].into_iter(), u64::MAX), []);
    }

    #[test]
    fn the_largest_ranges_remain() {
        let map = [(0..0x1000, true), (0x2000..0x5000, true), (0x6000..0x8000, true), (0x9000..0xa000, true)];
        assert_eq!(of::<2>(&map), [0x2000..0x5000, 0x6000..0x8000]);
        assert_eq!(of::<1>(&[(0..0x9000, true), (0x2000..0x3000, false)]), vec![0x3000..0x9000]);
    }

    proptest! {
        /// Against a map of single bytes: pages are RAM if all of their bytes are, and no other entry has any.
        #[test]
        fn pages_are_ram_by_all_entries(entries in prop::collection::vec((0_u64..0x8000, 0_u64..0x4000, any::<bool>()), 0..12)) {
            let entries = entries.into_iter().map(|(start, length, is_ram)| (start..start + length, is_ram));
            let mut bytes = vec![(false, false); 0xc000];
            for (range, is_ram) in entries.clone() {
                for at in range {
                    let (ram, other) = &mut bytes[at as usize];
                    *(if is_ram { ram } else { other }) = true;
                }
            }
            let found = ram::<16>(entries, 0xb000);
            prop_assert!(found.windows(2).all(|two| two[0].end < two[1].start));
            for (page, bytes) in bytes.chunks(PAGE as usize).enumerate() {
                let expected = page < 0xb && bytes.iter().all(|byte| *byte == (true, false));
                let at = page as u64 * PAGE;
                prop_assert_eq!(found.iter().any(|range| range.start <= at && at + PAGE <= range.end), expected, "{:x}", at);
            }
        }
    }
}
