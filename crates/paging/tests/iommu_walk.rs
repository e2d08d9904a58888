//! The IOMMU's tables, walked as the AMD I/O Virtualization Technology Specification (48882) describes it, by none of the crate's code.

use std::collections::BTreeMap;
use std::convert::Infallible;

use proptest::prelude::*;
use stile_paging::registers::PaRange;
use stile_paging::table::{AmdIommu, Attributes, Geometry, IommuPermissions, Mapping, MemoryType, PageTable, TableMemory, TableRead};

const ROOT: u64 = 0x10_0000;

/// Frames from [`ROOT`] on.
struct Frames {
    entries: BTreeMap<u64, u64>,
    next: u64,
}

impl TableRead for Frames {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        Ok(self.entries.get(&(table + 8 * index as u64)).copied().unwrap_or(0))
    }
}

impl TableMemory for Frames {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        self.entries.insert(table + 8 * index as u64, descriptor);
    }

    fn allocate(&mut self) -> Option<u64> {
        self.next += 0x1000;
        Some(self.next)
    }

    fn free(&mut self, _table: u64) {}
}

/// Walks from a device-table entry with mode 4. Returns the output address and whether the page is writable.
fn walk(memory: &Frames, address: u64) -> Option<(u64, bool)> {
    let (mut table, mut level, mut writable) = (ROOT, 4, true);
    loop {
        let shift = 12 + 9 * (level - 1);
        let Ok(entry) = memory.read(table, (address >> shift & 0x1ff) as usize);
        let (readable, next) = (entry >> 61 & 1 != 0, entry >> 9 & 7);
        writable &= entry >> 62 & 1 != 0;
        if entry & 1 == 0 || !readable {
            return None;
        }
        let output = entry & 0x000f_ffff_ffff_f000;
        if next == 0 {
            return Some((output + (address & ((1 << shift) - 1)), writable));
        }
        assert!(next < level, "levels descend");
        (table, level) = (output, next);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The IOMMU translates each byte of random pieces of RAM to its physical address, and nothing else.
    #[test]
    fn ram_is_reached_and_nothing_else(
        pieces in proptest::collection::vec((0..0x20_0000u64, 0..0x20_0000u64, 1..0x800u64, 0..3u32), 1..5),
        probes in proptest::collection::vec(0..1u64 << 34, 32),
    ) {
        let mut memory = Frames { entries: BTreeMap::new(), next: ROOT };
        let mut table = PageTable::new(AmdIommu, Geometry::stage1(48, PaRange::Bits48).unwrap(), ROOT).unwrap();
        let mut mapped: Vec<(u64, u64, u64, bool)> = Vec::new();
        for (gpa, pa, pages, level) in pieces {
            // Aligned to 4 KiB, 2 MiB or 1 GiB: some blocks of that size, and some pages.
            let shift = 12 + 9 * level;
            let size = (pages << 12) + if level == 0 { 0 } else { (pages & 3) << shift };
            let (gpa, pa) = (gpa << 12 >> shift << shift, pa << 12 >> shift << shift);
            let attributes = Attributes { memory: MemoryType::Normal, permissions: IommuPermissions { write: !pa.is_multiple_of(3) } };
            if table.map(&mut memory, Mapping { address: gpa, output: pa, size, attributes }).is_ok() {
                mapped.push((gpa, pa, size, attributes.permissions.write));
            }
        }
        let edges: Vec<u64> = mapped.iter().flat_map(|(gpa, _, size, _)| [gpa.wrapping_sub(1), *gpa, gpa + size - 1, gpa + size]).collect();
        for address in probes.into_iter().chain(edges).filter(|address| *address < 1 << 48) {
            let expected = mapped.iter().find(|(gpa, _, size, _)| (*gpa..gpa + size).contains(&address));
            prop_assert_eq!(walk(&memory, address), expected.map(|(gpa, pa, _, write)| (pa + address - gpa, *write)));
        }
    }
}
