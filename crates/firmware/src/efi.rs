//! The memory map of UEFI firmware (UEFI Specification, EFI_BOOT_SERVICES.GetMemoryMap).

use core::ops::Range;

/// Length of version 1 of a descriptor; firmware's are at least as long.
const DESCRIPTOR: usize = 40;

/// EFI_MEMORY_RUNTIME: firmware's runtime services use it.
const RUNTIME: u64 = 1 << 63;

/// EFI_MEMORY_WB: write-back cacheable.
const WRITE_BACK: u64 = 1 << 3;

/// EFI_MEMORY_TYPE of what is free when boot services have ended: loader code and data, boot services' code and data, conventional memory.
const FREE: [u32; 5] = [1, 2, 3, 4, 7];
/// EFI_MEMORY_TYPE of memory-mapped devices and their ports, which are not memory.
const DEVICES: [u32; 2] = [11, 12];

/// EFI_MEMORY_TYPE of memory that is neither free nor faulty: runtime services' code and data, ACPI tables and their storage.
const KEPT: [u32; 4] = [5, 6, 9, 10];

/// EFI_MEMORY_TYPE of memory of ACPI: tables, and their storage.
const ACPI: [u32; 2] = [9, 10];

fn is_free(kind: u32, attributes: u64) -> bool {
    FREE.contains(&kind) && attributes & RUNTIME == 0
}

/// The map's descriptors: ranges of addresses, and whether they are free when boot services have ended.
pub fn entries(map: &[u8], descriptor: usize) -> impl Iterator<Item = (Range<u64>, bool)> + Clone {
    map.chunks_exact(descriptor.max(DESCRIPTOR)).filter_map(|descriptor| {
        let free = range(descriptor, &is_free).map(|range| (range, true));
        free.or_else(|| range(descriptor, &|kind, attributes| !is_free(kind, attributes)).map(|range| (range, false)))
    })
}

/// All memory that the machine has, firmware's included. Neighbours are one range.
pub fn memory(map: &[u8], descriptor: usize) -> impl Iterator<Item = Range<u64>> + Clone {
    joined(map, descriptor, |kind, _| FREE.contains(&kind) || KEPT.contains(&kind))
}

/// Seconds since 1970 of a time (EFI_TIME: year, month, day, hour, minute, second) and its offset from UTC in minutes, if known.
/// `None` if it is not between 1970 and 9999.
pub fn seconds(year: u16, [month, day, hour, minute, second]: [u8; 5], offset: Option<i16>) -> Option<u64> {
    let in_range = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !in_range || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Years begin in March here, so that February's last day is a year's last (Howard Hinnant, "chrono-Compatible
    // Low-Level Date Algorithms").
    let (year, month, day) = (u64::from(year), u64::from(month), u64::from(day));
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468;
    let seconds = ((days * 24 + u64::from(hour)) * 60 + u64::from(minute)) * 60 + u64::from(second);
    seconds.checked_add_signed(-60 * i64::from(offset.unwrap_or(0)))
}

/// Returns the memory that firmware maps while its boot services run: memory of any use. The specification promises no mapping of reserved
/// memory (type 0), which counts only if it is write-back cacheable. EDK2 leaves the first page unmapped to catch null pointers.
pub fn mapped(map: &[u8], descriptor: usize) -> impl Iterator<Item = Range<u64>> + Clone {
    const FIRST_PAGE: u64 = 4096;
    let memory = joined(map, descriptor, |kind, attributes| match kind {
        0 => attributes & WRITE_BACK != 0,
        kind => FREE.contains(&kind) || KEPT.contains(&kind),
    });
    memory.map(|range| range.start.max(FIRST_PAGE)..range.end)
}

/// Memory that firmware occupies permanently, from a map whose descriptors have `descriptor` bytes. Adjacent ranges are merged; an overlong
/// one ends at the end of addresses.
pub fn reserved(map: &[u8], descriptor: usize) -> impl Iterator<Item = Range<u64>> + Clone {
    joined(map, descriptor, |kind, attributes| !(DEVICES.contains(&kind) || is_free(kind, attributes)))
}

/// Addresses that runtime services use: memory, or `devices` and other memory that is not cacheable, such as flash. Cacheable memory of ACPI
/// belongs to them: some firmware's services have data there.
pub fn runtime(map: &[u8], descriptor: usize, devices: bool) -> impl Iterator<Item = Range<u64>> + Clone {
    joined(map, descriptor, move |kind, attributes| {
        let is_device = DEVICES.contains(&kind) || attributes & WRITE_BACK == 0;
        let is_used = attributes & RUNTIME != 0 || (ACPI.contains(&kind) && !is_device);
        is_used && is_device == devices
    })
}

/// The ranges of descriptors whose type and attributes satisfy a condition.
fn joined(map: &[u8], descriptor: usize, wanted: impl Fn(u32, u64) -> bool + Clone) -> impl Iterator<Item = Range<u64>> + Clone {
    let mut ranges = map.chunks_exact(descriptor.max(DESCRIPTOR)).filter_map(move |descriptor| range(descriptor, &wanted)).peekable();
    core::iter::from_fn(move || {
        let mut range = ranges.next()?;
        while let Some(next) = ranges.next_if(|next| next.start == range.end) {
            range.end = next.end;
        }
        Some(range)
    })
}

/// The range of a descriptor, if it is wanted and not empty.
fn range(descriptor: &[u8], wanted: &impl Fn(u32, u64) -> bool) -> Option<Range<u64>> {
    let field = |at: usize| Some(u64::from_le_bytes(*descriptor.get(at..)?.first_chunk()?));
    let (kind, start, pages, attributes) = (field(0)? as u32, field(8)?, field(24)?, field(32)?);
    let end = start.saturating_add(pages.saturating_mul(4096));
    (start < end && wanted(kind, attributes)).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// A map of 48-byte descriptors.
    fn map(of: &[(u32, u64, u64, u64)]) -> Vec<u8> {
        of.iter()
            .flat_map(|&(kind, start, pages, attributes)| [kind.into(), start, 0, pages, attributes, 0].map(u64::to_le_bytes))
            .flatten()
            .collect()
    }

    #[test]
    fn what_is_the_firmwares_is_reserved() {
        let map = map(&[
            (7, 0x4000_0000, 16, 0xf),
            (6, 0x4001_0000, 2, RUNTIME | 0xf),
            (5, 0x4001_2000, 1, RUNTIME),
            (4, 0x4001_3000, 8, 0),
            (0, 0x5000_0000, 1, 0),
            (9, 0x6000_0000, 3, 0),
            (7, 0x7000_0000, 1, RUNTIME),
            (11, 0x900_0000, 1, RUNTIME),
            (10, 0x8000_0000, 0, 0),
            (99, u64::MAX - 4095, u64::MAX, 0),
        ]);
        let expected = [0x4001_0000..0x4001_3000, 0x5000_0000..0x5000_1000, 0x6000_0000..0x6000_3000, 0x7000_0000..0x7000_1000];
        let found: Vec<_> = reserved(&map, 48).collect();
        assert_eq!(found[..4], expected);
        let all: Vec<_> = memory(&map, 48).collect();
        assert_eq!(all, [0x4000_0000..0x4001_b000, 0x6000_0000..0x6000_3000, 0x7000_0000..0x7000_1000]);
        let unused: Vec<_> = entries(&map, 48).filter(|(_, is_free)| *is_free).map(|(range, _)| range).collect();
        assert_eq!(unused, [0x4000_0000..0x4001_0000, 0x4001_3000..0x4001_b000]);
        assert_eq!(entries(&map, 48).count(), 9, "one is empty");
        assert_eq!((found.len(), &found[4]), (5, &(u64::MAX - 4095..u64::MAX)));
    }

    #[test]
    fn mapped_memory_is_of_any_use() {
        let map = map(&[
            (9, 0x2000, 1, 0xf),
            (7, 0x5000, 1, 0xf),
            (10, 0x1000, 1, 0xf),
            (0, 0x3000, 1, WRITE_BACK),
            (0, 0x4000, 1, 1),
            (11, 0x6000, 1, WRITE_BACK),
            (4, 0, 1, 0xf),
            (7, 0, 160, 0xf),
        ]);
        let found: Vec<_> = mapped(&map, 48).collect();
        let expected = [0x2000..0x3000, 0x5000..0x6000, 0x1000..0x2000, 0x3000..0x4000, 0x1000..0x1000, 0x1000..0xa_0000];
        assert_eq!(found, expected, "neither other reserved memory, nor devices, nor the first page");
    }

    #[test]
    fn times_are_seconds() {
        assert_eq!(seconds(1970, [1, 1, 0, 0, 0], None), Some(0));
        assert_eq!(seconds(2000, [2, 29, 23, 59, 59], None), Some(951_868_799));
        assert_eq!(seconds(2000, [3, 1, 0, 0, 0], None), Some(951_868_800));
        assert_eq!(seconds(2026, [11, 23, 20, 24, 5], None), Some(1_795_465_445));
        assert_eq!(seconds(2026, [11, 23, 20, 24, 5], Some(-90)), Some(1_795_465_445 + 5400));
        assert_eq!(seconds(1970, [1, 1, 0, 0, 0], Some(1)), None, "before 1970");
        for wrong in [[0, 1, 0, 0, 0], [13, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 24, 0, 0], [1, 1, 0, 60, 0], [1, 1, 0, 0, 60]] {
            assert_eq!(seconds(2026, wrong, None), None);
        }
        assert_eq!(seconds(1969, [12, 31, 0, 0, 0], None), None);
    }

    #[test]
    fn a_broken_map_is_no_panic() {
        let map = map(&[(0, 0, 1, 0)]);
        assert_eq!(reserved(&map[..47], 48).count(), 0);
        assert_eq!(reserved(&map, 0).count(), 1);
        assert_eq!(reserved(&[], usize::MAX).count(), 0);
        assert_eq!((mapped(&map[..47], 48).count(), mapped(&[], usize::MAX).count()), (0, 0));
    }
}
