//! ACPI tables as such (ACPI Specification 6.5, section 5.2.6 "System Description Table Header").

use crate::Memory;
use crate::bytes::{u32_at, u64_at};

/// The longest table that is read, in bytes.
const TABLE_MAX: u32 = 1 << 20;
/// Length of a table's header.
pub const HEADER: usize = 36;

/// Returns a whole table, header included, if its length and checksum are valid.
pub fn table(memory: &impl Memory, address: u64) -> Option<&[u8]> {
    let length = u32_at(memory.bytes(address, HEADER)?, 4)?;
    if !(HEADER as u32..=TABLE_MAX).contains(&length) {
        return None;
    }
    let bytes = memory.bytes(address, length as usize)?;
    (sum(bytes) == 0).then_some(bytes)
}

/// The most tables of a root that are read: a root of 1 MiB could name as many long tables as take minutes.
const MOST_TABLES: usize = 512;

/// The tables' addresses in a root table (XSDT, RSDT), whose entries have `size` bytes.
pub fn addresses(root: &[u8], size: usize) -> impl Iterator<Item = u64> {
    let entries = root.get(HEADER..).unwrap_or(&[]).chunks_exact(size).take(MOST_TABLES);
    entries.filter_map(|entry| u64_at(entry, 0).or_else(|| u32_at(entry, 0).map(u64::from)))
}

/// The sum of all bytes: zero for a table with a valid checksum.
pub fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}
