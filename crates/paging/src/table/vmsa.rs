//! The common part of all VMSAv8-64 formats of the 4 KiB granule: see "VMSAv8-64 descriptor formats" in the
//! manual.

use super::Level;
use super::format::{Entry, Layout};

/// Bits 47 to 12: the address in a table or page descriptor.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
const VALID: u64 = 1 << 0;
/// Bit 1: set in table and page descriptors, clear in block descriptors.
const TABLE_OR_PAGE: u64 = 1 << 1;

/// Arm's descriptor layout.
#[derive(Debug, Clone, Copy)]
pub struct Vmsa;

impl Layout for Vmsa {
    #[inline]
    fn entry(level: Level, descriptor: u64) -> Entry {
        if descriptor & VALID == 0 {
            return Entry::Invalid;
        }
        let large = descriptor & TABLE_OR_PAGE == 0;
        match (level, large) {
            (Level::L3, false) => Entry::Leaf(descriptor & ADDRESS),
            (Level::L1 | Level::L2, true) => Entry::Leaf(descriptor & ADDRESS & !(level.size() - 1)),
            (Level::L0 | Level::L1 | Level::L2, false) => Entry::Table(descriptor & ADDRESS),
            (Level::L0 | Level::L3, true) => Entry::Invalid,
        }
    }

    #[inline]
    fn table_descriptor(_level: Level, table: u64) -> u64 {
        (table & ADDRESS) | TABLE_OR_PAGE | VALID
    }

    #[inline]
    fn leaf_descriptor(level: Level, output: u64, attributes: u64) -> u64 {
        let kind = if matches!(level, Level::L3) { TABLE_OR_PAGE } else { 0 };
        (output & ADDRESS) | attributes | kind | VALID
    }

    #[inline]
    fn attribute_bits(descriptor: u64) -> u64 {
        descriptor & !(ADDRESS | TABLE_OR_PAGE | VALID)
    }
}
