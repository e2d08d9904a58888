//! ACPI tables as such (ACPI Specification 6.5, section 5.2.6 "System Description Table Header").

use crate::Memory;
use crate::bytes::{u8_at, u32_at, u64_at};

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

/// Maximum number of a root's tables that are read: the checksums of all long tables that 1 MiB can name would take minutes.
const MOST_TABLES: usize = 512;
/// The most tables of one name that are read.
const MOST_OF_NAME: u8 = 4;
/// The most names that are wanted.
const MOST_NAMES: usize = 8;

/// The name of a table ("Signature"), as a number: a comparison with a text may read a pointer, which leads nowhere where an Arm image runs
/// before the MMU is set up.
pub const fn name(of: [u8; 4]) -> u32 {
    u32::from_le_bytes(of)
}

// Names of tables that both architectures have.
pub const APIC: u32 = name(*b"APIC");
pub const DBG2: u32 = name(*b"DBG2");
pub const FACP: u32 = name(*b"FACP");
pub const MCFG: u32 = name(*b"MCFG");
pub const SPCR: u32 = name(*b"SPCR");
pub const SRAT: u32 = name(*b"SRAT");

/// A root table, whose entries have a number of bytes.
pub type Root<'a> = (&'a [u8], usize);

/// Returns the best readable root table (XSDT, or else RSDT) that a root pointer names.
pub fn root<'a>(memory: &'a impl Memory, rsdp: &[u8]) -> Option<Root<'a>> {
    let is_extended = u8_at(rsdp, 15).is_some_and(|revision| revision >= 2) && rsdp.get(..36).is_some_and(|all| sum(all) == 0);
    let read = |address: u64, of: u32| table(memory, address).filter(|bytes| u32_at(bytes, 0) == Some(of));
    let xsdt = u64_at(rsdp, 24).filter(|_| is_extended).and_then(|xsdt| read(xsdt, name(*b"XSDT")));
    let rsdt = || read(u32_at(rsdp, 16)?.into(), name(*b"RSDT"));
    xsdt.map(|bytes| (bytes, 8)).or_else(|| rsdt().map(|bytes| (bytes, 4)))
}

/// Returns the root pointer (RSDP) at an address, if there is one.
pub fn root_pointer(memory: &impl Memory, address: u64) -> Option<&[u8]> {
    // Version 1 is 20 bytes long.
    memory.bytes(address, 36).or_else(|| memory.bytes(address, 20)).filter(|bytes| is_root_pointer(bytes))
}

/// Whether bytes begin with a root pointer.
pub fn is_root_pointer(bytes: &[u8]) -> bool {
    // "RSD PTR ", as a number, like names.
    const SIGNATURE: u64 = u64::from_le_bytes(*b"RSD PTR ");
    u64_at(bytes, 0) == Some(SIGNATURE) && bytes.get(..20).is_some_and(|first| sum(first) == 0)
}

/// The valid tables that a root names, with their names, the first one of each wanted name. Others are not summed up. There are at most
/// eight names.
pub fn wanted<'a>(memory: &'a impl Memory, (root, size): Root<'a>, names: &'a [u32]) -> impl Iterator<Item = (u32, &'a [u8])> {
    let mut left = [MOST_OF_NAME; MOST_NAMES];
    addresses(root, size).filter_map(move |address| {
        let found = u32_at(memory.bytes(address, HEADER)?, 0)?;
        let left = left.get_mut(names.iter().position(|&name| name == found)?)?;
        *left = left.checked_sub(1)?;
        let bytes = table(memory, address)?;
        *left = 0;
        Some((found, bytes))
    })
}

/// The tables' addresses in a root table, whose entries have `size` bytes.
fn addresses(root: &[u8], size: usize) -> impl Iterator<Item = u64> {
    let entries = root.get(HEADER..).unwrap_or(&[]).chunks_exact(size).take(MOST_TABLES);
    entries.filter_map(|entry| u64_at(entry, 0).or_else(|| u32_at(entry, 0).map(u64::from)))
}

/// The sum of all bytes: zero for a table with a valid checksum.
pub fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::Flat;
    use crate::within::Within;
    use core::cell::Cell;
    use std::{vec, vec::Vec};

    /// Memory that counts the bytes that are read.
    struct Counted<'a>(Flat, &'a Cell<usize>);

    impl Memory for Counted<'_> {
        fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
            self.1.set(self.1.get() + len);
            self.0.bytes(address, len)
        }
    }

    /// A root names one table of 64 KiB hundreds of times, which is valid or not, wanted or not.
    #[test]
    fn few_tables_are_read_as_a_whole() {
        const LENGTH: usize = 1 << 16;
        const AT: u64 = 0x1000;
        let names = [name(*b"APIC"), name(*b"SPCR")];
        let root = [vec![0; HEADER], [(AT as u32).to_le_bytes(); MOST_TABLES + 1].concat()].concat();
        for (of, is_valid, reads) in [(*b"SSDT", true, 0), (*b"SPCR", true, 1), (*b"SPCR", false, usize::from(MOST_OF_NAME))] {
            let mut bytes = vec![0; AT as usize + LENGTH];
            let table = &mut bytes[AT as usize..];
            table[..4].copy_from_slice(&of);
            table[4..8].copy_from_slice(&(LENGTH as u32).to_le_bytes());
            table[9] = 0_u8.wrapping_sub(sum(table)).wrapping_add(u8::from(!is_valid));
            let count = Cell::new(0);
            let memory = Within::new(Counted(Flat(bytes), &count), core::iter::once(AT..AT + LENGTH as u64));
            let found: Vec<_> = wanted(&memory, (&root, 4), &names).map(|(name, bytes)| (name, bytes.len())).collect();
            assert_eq!(found, [(name(of), LENGTH)][usize::from(reads != 1)..]);
            assert_eq!(count.get(), MOST_TABLES * HEADER + reads * (HEADER + LENGTH));
        }
    }
}
