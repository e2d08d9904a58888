//! A BIOS's memory map, which Multiboot loaders pass on (ACPI Specification 6.5, "INT 15H, E820H - Query System Address Map").

use core::ops::{Range, RangeInclusive};

use crate::Memory;
use crate::within::{Within, Without};

/// AddressRangeMemory: RAM that may be used.
const RAM: u32 = 1;
/// AddressRangeMemory, AddressRangeReserved, AddressRangeACPI and AddressRangeNVS: types in which a BIOS puts tables. It should not use the
/// first, but a careless one does. Others are faulty (5), off (6), slow to be there (7), or undefined.
const READABLE: RangeInclusive<u32> = 1..=4;

/// Registers of a PC's chipset, and its flash memory, from the first I/O APIC to the reset vector. Firmware places BARs below.
pub const CHIPSET: Range<u64> = 0xfec0_0000..1 << 32;

/// Memory of each PC below 1 MiB, which maps may lack: a BIOS's data, and its code. Between them is the screen's.
const LOW: [Range<u64>; 2] = [0..0xa_0000, 0xc_0000..BIOS.end];

/// Memory in which a PC's firmware may leave a root pointer ("Finding the RSDP on IA-PC Systems"), whatever its map has there.
pub const BIOS: Range<u64> = 0xe_0000..0x10_0000;

/// Entries of a map, with their types, as ranges of addresses and whether they are RAM that may be used.
pub fn free(entries: impl Iterator<Item = (Range<u64>, u32)> + Clone) -> impl Iterator<Item = (Range<u64>, bool)> + Clone {
    entries.map(|(range, kind)| (range, kind == RAM))
}

/// Memory at addresses at which ACPI tables may be: those of [`tables`], as far as no entry has other types there.
pub fn within<M: Memory>(memory: M, entries: impl Iterator<Item = (Range<u64>, u32)> + Clone) -> impl Memory {
    let others = entries.clone().filter(|(_, kind)| !READABLE.contains(kind)).flat_map(|(range, _)| outside(&range, &BIOS));
    Within::new(Without::new(memory, others), tables(entries))
}

/// Entries with types of memory in which ACPI tables may be, with the exception of the chipset's registers; and each PC's memory below 1 MiB.
pub fn tables(entries: impl Iterator<Item = (Range<u64>, u32)> + Clone) -> impl Iterator<Item = Range<u64>> + Clone {
    let parts = entries.filter(|(_, kind)| READABLE.contains(kind)).flat_map(|(range, _)| outside(&range, &CHIPSET));
    LOW.into_iter().chain(parts.filter(|range| !range.is_empty()))
}

/// The parts of a range below and above another one; they may be empty.
fn outside(range: &Range<u64>, other: &Range<u64>) -> [Range<u64>; 2] {
    [range.start..range.end.min(other.start), range.start.max(other.end)..range.end]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory everywhere.
    struct All;

    impl Memory for All {
        fn bytes(&self, _: u64, len: usize) -> Option<&[u8]> {
            const { &[0; 64] }.get(..len)
        }
    }

    #[test]
    fn tables_are_in_sound_memory() {
        let map = [
            (0..0x9_f000, 1),
            (0x10_0000..0x7000_0000, 1),
            (0x7000_0000..0x7100_0000, 2),
            (0x7100_0000..0x7200_0000, 3),
            (0x7200_0000..0x7300_0000, 4),
            (0x7300_0000..0x7400_0000, 5),
            (0x7400_0000..0x7500_0000, 6),
            (0x7500_0000..0x7600_0000, 7),
            (0x7600_0000..0x7700_0000, 0),
            (0x7700_0000..0x7800_0000, 8),
            (0x2000_0000..0x2000_1000, 5),
            (0x2000_2000..0x2000_3000, 13),
            (0x3000_0000..0x3000_0000, 5),
            (0x3000_0000..0x3000_1000, 2),
            (0x5000..0x6000, 5),
            (0xf_0000..0xf_8000, 5),
            (0xfe00_0000..0x1_4000_0000, 2),
        ];
        let memory = within(All, map.iter().cloned());
        let is = |address| memory.bytes(address, 64).is_some();
        assert!(is(0x400) && is(0x9_ffc0) && is(0xc_0000) && is(0xf_ffe0), "a BIOS's");
        assert!(!is(0x9_ffe0) && !is(0xa_0000) && !is(0xb_ffe0), "the screen's");
        assert!(is(0x6fff_ffe0) && is(0x70ff_ffe0) && is(0x71ff_ffe0) && is(0x72ff_ffc0) && is(0x1_0000_0000), "of each type");
        assert!(!is(0x72ff_ffe0) && [0x7300_0000, 0x7400_0000, 0x7500_0000, 0x7600_0000, 0x7700_0000, 0x7800_0000].map(is) == [false; 6]);
        assert!(is(0x1fff_ffc0) && !is(0x1fff_ffe0) && !is(0x2000_0000) && !is(0x2000_0fe0) && is(0x2000_1000), "faulty within RAM");
        assert!(!is(0x2000_1fe0) && !is(0x2000_2800) && is(0x2000_3000), "undefined within RAM");
        assert!(is(0x3000_0000) && is(0x2fff_ffe0), "no bytes within RAM");
        assert!(!is(0x5000) && is(0x6000) && is(0xf_0000), "faulty low memory, and a BIOS's");
        assert!(is(0xfebf_ffc0) && !is(0xfebf_ffe0) && !is(0xfec0_0000) && !is(0xfee0_0000) && !is(0xffff_ffe0), "the chipset's");
        assert!(!is(0x1_4000_0000) && !is(u64::MAX - 8));
        assert!(free(map.iter().cloned()).map(|(_, is_free)| is_free).eq(map.iter().map(|&(_, kind)| kind == 1)));
    }
}
