//! Tables of AMD's IOMMU for the DMA of PCI functions: "Host Page Table Entries" in the AMD I/O Virtualization Technology
//! Specification (48882), here "the manual".

use super::Level;
use super::format::{Attributes, Entry, Format, Layout, MemoryType};

const PRESENT: u64 = 1 << 0;
/// Bits 11 to 9: the level of the table to which an entry points, numbered from 1 for tables of pages; 0 in a leaf. Entries that skip
/// levels, and leaves with sizes of their own (7), do not occur.
const NEXT_LEVEL: u32 = 9;
const NEXT_LEVEL_MASK: u64 = 0b111 << NEXT_LEVEL;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bit 60: accesses are coherent whatever the request asks for.
const COHERENT: u64 = 1 << 60;
/// Permissions of the walk so far are those of all entries.
const READABLE: u64 = 1 << 61;
const WRITABLE: u64 = 1 << 62;

/// Bits of a leaf that are no attributes.
const LEAF: u64 = PRESENT | NEXT_LEVEL_MASK | ADDRESS;

/// Permissions of functions: they can read all that is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IommuPermissions {
    /// Writes are permitted.
    pub write: bool,
}

/// The layout of the IOMMU's tables.
#[derive(Debug, Clone, Copy)]
pub struct AmdIommuLayout;

/// The manual's number of the tables to which entries of `level` point: 0 for pages.
const fn next_level(level: Level) -> u64 {
    3 - level as u64
}

impl Layout for AmdIommuLayout {
    fn entry(level: Level, descriptor: u64) -> Entry {
        if descriptor & PRESENT == 0 {
            return Entry::Invalid;
        }
        match (descriptor & NEXT_LEVEL_MASK) >> NEXT_LEVEL {
            0 if level.has_leaves() => Entry::Leaf(descriptor & ADDRESS & !(level.size() - 1)),
            next if next != 0 && next == next_level(level) => Entry::Table(descriptor & ADDRESS),
            _ => Entry::Invalid,
        }
    }

    fn table_descriptor(level: Level, table: u64) -> u64 {
        table & ADDRESS | next_level(level) << NEXT_LEVEL | PRESENT | READABLE | WRITABLE
    }

    fn leaf_descriptor(_level: Level, output: u64, attributes: u64) -> u64 {
        output & ADDRESS | attributes | PRESENT
    }

    fn attribute_bits(descriptor: u64) -> u64 {
        descriptor & !LEAF
    }
}

/// The format of the IOMMU's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmdIommu;

impl AmdIommu {
    /// A descriptor that is not present, at all levels. The IOMMU ignores its other bits; QEMU's (10.0) reports a request that meets it,
    /// but none that meets zero.
    pub const REPORTED: u64 = 1 << NEXT_LEVEL;
}

impl Format for AmdIommu {
    type Layout = AmdIommuLayout;
    type Permissions = IommuPermissions;

    fn supports(&self, _: IommuPermissions) -> bool {
        true
    }

    /// Without COHERENT, the request decides whether caches are snooped.
    fn encode(&self, Attributes { memory, permissions }: Attributes<IommuPermissions>) -> u64 {
        let coherent = if matches!(memory, MemoryType::Normal) { COHERENT } else { 0 };
        self.with_permissions(coherent, permissions)
    }

    fn decode(&self, descriptor: u64) -> Attributes<IommuPermissions> {
        let memory = if descriptor & COHERENT != 0 { MemoryType::Normal } else { MemoryType::NonCacheable };
        Attributes { memory, permissions: IommuPermissions { write: descriptor & WRITABLE != 0 } }
    }

    fn with_permissions(&self, descriptor: u64, permissions: IommuPermissions) -> u64 {
        descriptor & !WRITABLE | READABLE | if permissions.write { WRITABLE } else { 0 }
    }

    // The entries of functions' tables have no accessed flag that Stile uses: each readable page counts as accessed.
    fn is_accessed(&self, descriptor: u64) -> bool {
        descriptor & READABLE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Attributes<IommuPermissions> = Attributes { memory: MemoryType::Normal, permissions: IommuPermissions { write: true } };

    #[test]
    fn tables_name_their_level() {
        let table = |level| AmdIommuLayout::table_descriptor(level, 0x4_5678_9000);
        assert_eq!([Level::L0, Level::L1, Level::L2].map(table), [0x6000_0004_5678_9601, 0x6000_0004_5678_9401, 0x6000_0004_5678_9201]);
        for level in [Level::L0, Level::L1, Level::L2] {
            assert_eq!(AmdIommuLayout::entry(level, table(level)), Entry::Table(0x4_5678_9000));
        }
        // A skipped level, and a level above.
        assert_eq!(AmdIommuLayout::entry(Level::L0, table(Level::L1)), Entry::Invalid);
        assert_eq!(AmdIommuLayout::entry(Level::L3, table(Level::L2)), Entry::Invalid);
    }

    #[test]
    fn leaves_have_the_size_of_their_level() {
        let leaf = |level, output| AmdIommuLayout::leaf_descriptor(level, output, AmdIommu.encode(DATA));
        assert_eq!(leaf(Level::L3, 0x1234_5000), 0x7000_0000_1234_5001);
        for level in [Level::L1, Level::L2, Level::L3] {
            let descriptor = leaf(level, 0x80_4000_0000);
            assert_eq!(AmdIommuLayout::entry(level, descriptor), Entry::Leaf(0x80_4000_0000));
            assert_eq!(AmdIommu.decode(AmdIommuLayout::attribute_bits(descriptor)), DATA);
        }
        assert_eq!(AmdIommuLayout::entry(Level::L0, leaf(Level::L1, 0)), Entry::Invalid, "no such size");
        // A size of its own.
        assert_eq!(AmdIommuLayout::entry(Level::L3, leaf(Level::L3, 0) | NEXT_LEVEL_MASK), Entry::Invalid);
        let read_only = AmdIommu.with_permissions(leaf(Level::L3, 0x1000), IommuPermissions { write: false });
        assert_eq!(read_only, 0x3000_0000_0000_1001);
    }

    #[test]
    fn nothing_is_mapped_by_what_is_not_present() {
        for level in [Level::L0, Level::L1, Level::L2, Level::L3] {
            assert_eq!(AmdIommuLayout::entry(level, AmdIommu::REPORTED), Entry::Invalid);
            assert_eq!(AmdIommuLayout::entry(level, 0x1000), Entry::Invalid);
        }
    }
}
