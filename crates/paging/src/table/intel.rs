//! The encoding of addresses, tables and pages that Intel's paging structures and EPT have in common. Here "the
//! manual" is the Intel 64 and IA-32 Architectures Software Developer's Manual.

use super::Level;
use super::format::{Entry, Layout};

/// Bits 51 to 12: the address in an entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bit 7: the entry maps a page of 1 GiB or 2 MiB.
const LARGE: u64 = 1 << 7;

/// The bits that differ between the stages ("4-Level Paging and 5-Level Paging"; "The Extended Page Table
/// Mechanism (EPT)").
pub trait Intel {
    /// An entry with none of these bits set is not present.
    const PRESENT: u64;
    /// Set in an entry that points to a table.
    const TABLE: u64;
    /// Set in every entry that maps a page.
    const LEAF: u64;
}

impl<T: Intel> Layout for T {
    #[inline]
    fn entry(level: Level, descriptor: u64) -> Entry {
        if descriptor & T::PRESENT == 0 {
            return Entry::Invalid;
        }
        match (level, descriptor & LARGE != 0) {
            (Level::L3, _) => Entry::Leaf(descriptor & ADDRESS),
            (Level::L1 | Level::L2, true) => Entry::Leaf(descriptor & ADDRESS & !(level.size() - 1)),
            (Level::L0 | Level::L1 | Level::L2, false) => Entry::Table(descriptor & ADDRESS),
            // A reserved bit is set: a page fault, or an EPT misconfiguration.
            (Level::L0, true) => Entry::Invalid,
        }
    }

    #[inline]
    fn table_descriptor(_level: Level, table: u64) -> u64 {
        (table & ADDRESS) | T::TABLE
    }

    #[inline]
    fn leaf_descriptor(level: Level, output: u64, attributes: u64) -> u64 {
        let large = if matches!(level, Level::L3) { 0 } else { LARGE };
        (output & ADDRESS) | attributes | large | T::LEAF
    }

    #[inline]
    fn attribute_bits(descriptor: u64) -> u64 {
        descriptor & !(ADDRESS | LARGE | T::LEAF)
    }
}
