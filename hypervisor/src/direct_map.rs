//! Selects the physical memory in the direct map, and its permissions.

use core::ops::Range;

use stile_paging::PAGE_SIZE;

/// Calls `map` for each run of whole pages of `ram` that belongs in the direct map, with its writability. Excludes
/// Stile's `image`, whose parts are mapped elsewhere with their own permissions; the `blob` behind it is read-only.
pub fn runs(ram: &Range<u64>, image: &Range<u64>, blob: &Range<u64>, mut map: impl FnMut(Range<u64>, bool)) {
    let end = ram.end & !(PAGE_SIZE - 1);
    let Some(mut at) = ram.start.checked_next_multiple_of(PAGE_SIZE) else { return };
    for (part, is_mapped) in [(image, false), (blob, true)] {
        let part = part.start.max(at)..part.end.min(end);
        if part.is_empty() {
            continue;
        }
        if at < part.start {
            map(at..part.start, true);
        }
        if is_mapped {
            map(part.clone(), false);
        }
        at = part.end;
    }
    if at < end {
        map(at..end, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ram: Range<u64>, image: Range<u64>, blob: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let mut found = Vec::new();
        runs(&ram, &image, &blob, |run, writable| found.push((run, writable)));
        found
    }

    #[test]
    fn the_image_is_left_out_and_the_blob_is_read_only() {
        let (image, blob) = (0x20_0000..0x30_0000, 0x30_0000..0x38_0000);
        let whole = [(0x10_0000..0x20_0000, true), (0x30_0000..0x38_0000, false), (0x38_0000..0x80_0000, true)];
        assert_eq!(all(0x10_0000..0x80_0000, image.clone(), blob.clone()), whole);
        // RAM that begins with the image, and ends with the blob; RAM with neither; no blob.
        assert_eq!(all(0x20_0000..0x38_0000, image.clone(), blob.clone()), [(0x30_0000..0x38_0000, false)]);
        assert_eq!(all(0x80_0000..0x90_0000, image.clone(), blob.clone()), [(0x80_0000..0x90_0000, true)]);
        assert_eq!(all(0..0x10_0000, image.clone(), blob.clone()), [(0..0x10_0000, true)]);
        assert_eq!(all(0x20_0000..0x80_0000, image.clone(), 0x30_0000..0x30_0000), [(0x30_0000..0x80_0000, true)]);
        // A blob in two pieces of RAM.
        assert_eq!(all(0x20_0000..0x34_0000, image.clone(), blob.clone()), [(0x30_0000..0x34_0000, false)]);
        assert_eq!(all(0x34_0000..0x40_0000, image, blob), [(0x34_0000..0x38_0000, false), (0x38_0000..0x40_0000, true)]);
    }

    #[test]
    fn only_whole_pages_count() {
        let nothing = 0..0;
        assert_eq!(all(0x1800..0x4fff, nothing.clone(), nothing.clone()), [(0x2000..0x4000, true)]);
        assert_eq!(all(0x1001..0x1fff, nothing.clone(), nothing.clone()), []);
        assert_eq!(all(u64::MAX - 8..u64::MAX, nothing.clone(), nothing), []);
    }
}
