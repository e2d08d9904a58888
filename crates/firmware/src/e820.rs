//! A BIOS's memory map, which Multiboot loaders pass on (ACPI Specification 6.5, "INT 15H, E820H - Query System Address Map").

use core::ops::Range;

/// AddressRangeMemory: RAM that may be used.
const RAM: u32 = 1;
/// AddressRangeUnusable: RAM with errors.
const UNUSABLE: u32 = 5;

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

/// Addresses at which ACPI tables may be: what a map has, with the exception of faulty memory and of the chipset's registers. A BIOS puts
/// tables into memory of types 2 to 4, and a careless one into memory that may be used, too.
pub fn tables(entries: impl Iterator<Item = (Range<u64>, u32)> + Clone) -> impl Iterator<Item = Range<u64>> + Clone {
    let sound = entries.filter(|&(_, kind)| kind != UNUSABLE).map(|(range, _)| range);
    let parts = sound.flat_map(|range| [range.start..range.end.min(CHIPSET.start), range.start.max(CHIPSET.end)..range.end]);
    LOW.into_iter().chain(parts.filter(|range| !range.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use crate::within::Within;

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
            (0xfe00_0000..0x1_4000_0000, 2),
        ];
        let memory = Within::new(All, tables(map.iter().cloned()));
        let is = |address| memory.bytes(address, 64).is_some();
        assert!(is(0x400) && is(0x9_ffc0) && is(0xc_0000) && is(0xf_ffe0), "a BIOS's");
        assert!(!is(0x9_ffe0) && !is(0xa_0000) && !is(0xb_ffe0), "the screen's");
        assert!(is(0x6fff_ffe0) && is(0x70ff_ffe0) && is(0x71ff_ffe0) && is(0x72ff_ffc0) && is(0x1_0000_0000), "of each type");
        assert!(!is(0x72ff_ffe0) && !is(0x7300_0000) && !is(0x7400_0000), "faulty, and nothing");
        assert!(is(0xfebf_ffc0) && !is(0xfebf_ffe0) && !is(0xfec0_0000) && !is(0xfee0_0000) && !is(0xffff_ffe0), "the chipset's");
        assert!(!is(0x1_4000_0000) && !is(u64::MAX - 8));
        assert!(free(map.iter().cloned()).map(|(_, is_free)| is_free).eq([true, true, false, false, false, false, false]));
    }
}
