//! Places of disks in guest memory: regions of persistent memory behind RAM.

use core::ops::Range;

use crate::map::RAM_GRANULE;

/// The most disks in memory of a virtual machine.
pub const MAX_MEMORY_DISKS: usize = 4;

/// Alignment and granularity of a region: Linux maps persistent memory in blocks of 2 MiB, its sub-sections.
pub const REGION_ALIGN: u64 = RAM_GRANULE;

/// Unused bytes between two regions: Linux merges neighbours of one type in a PC's memory map.
const GAP: u64 = REGION_ALIGN;

/// Returns the size of the region for a disk of `len` bytes, or `u64::MAX` if there is no such number.
pub const fn region_size(len: u64) -> u64 {
    match len.checked_next_multiple_of(REGION_ALIGN) {
        Some(size) => size,
        None => u64::MAX,
    }
}

/// Returns the memory for regions of these sizes, in bytes.
pub fn total(regions: &[u64]) -> u64 {
    regions.iter().fold(0, |total: u64, size| gapped(total).saturating_add(*size))
}

/// Returns the addresses of regions of these sizes, the first one at `start`. Their [`total`] must not exceed the address space.
pub fn places(start: u64, regions: &[u64]) -> impl Iterator<Item = Range<u64>> {
    regions.iter().scan(0, move |total, size| {
        let first = gapped(*total);
        *total = first + size;
        Some(start + first..start + *total)
    })
}

/// Offset of the next region behind others of `total` bytes.
const fn gapped(total: u64) -> u64 {
    if total == 0 { 0 } else { total.saturating_add(GAP) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_have_gaps_between_them() {
        let sizes = [region_size(1), region_size(REGION_ALIGN + 1)];
        assert_eq!((sizes, total(&sizes), total(&[])), ([2 << 20, 4 << 20], 8 << 20, 0));
        let mut places = places(1 << 30, &sizes);
        assert_eq!(places.next(), Some(1 << 30..(1 << 30) + (2 << 20)));
        assert_eq!(places.next(), Some((1 << 30) + (4 << 20)..(1 << 30) + (8 << 20)));
        assert_eq!(places.next(), None);
    }

    #[test]
    fn sizes_do_not_overflow() {
        assert_eq!((region_size(u64::MAX), total(&[u64::MAX, u64::MAX])), (u64::MAX, u64::MAX));
    }
}
