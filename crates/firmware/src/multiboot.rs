//! Boot information of a Multiboot loader (Multiboot Specification 0.6.96, "Boot information format").

use core::ops::Range;

use crate::Memory;
use crate::bytes::{u32_at, u64_at};

/// EAX at entry from a Multiboot loader.
pub const MAGIC: u32 = 0x2bad_b002;

/// Bit of `flags`: `mmap_*` are valid.
const HAS_MAP: u32 = 1 << 6;
/// The largest memory map that is read, in bytes.
const MAP_MAX: u32 = 64 << 10;

/// Returns the entries of the memory map in the information at `info`: ranges of addresses, and their types in a BIOS's map
/// ([`e820`](crate::e820)).
///
/// # Errors
/// A sentence for the operator: the map is missing or not readable.
pub fn entries(memory: &impl Memory, info: u64) -> Result<impl Iterator<Item = (Range<u64>, u32)> + Clone, &'static str> {
    let header = memory.bytes(info, 52).ok_or("the boot loader's information is out of reach")?;
    let word = |at| u32_at(header, at).unwrap_or(0);
    let (flags, length, address) = (word(0), word(44), word(48));
    if flags & HAS_MAP == 0 {
        return Err("the boot loader gave no memory map");
    }
    let map = memory.bytes(address.into(), length.min(MAP_MAX) as usize).ok_or("the boot loader's memory map is out of reach")?;
    let mut at = 0;
    Ok(core::iter::from_fn(move || {
        // Each entry's size does not count the field that holds it.
        let size = u32_at(map, at).filter(|&size| size >= 20)?;
        let (base, length, kind) = (u64_at(map, at + 4)?, u64_at(map, at + 12)?, u32_at(map, at + 20)?);
        at += size as usize + 4;
        Some((base..base.saturating_add(length), kind))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::Flat;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    fn entry(base: u64, length: u64, kind: u32, size: u32) -> Vec<u8> {
        let mut bytes = size.to_le_bytes().to_vec();
        bytes.extend(base.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.resize(size as usize + 4, 0xff);
        bytes
    }

    fn information(map: &[u8], flags: u32) -> Flat {
        let mut bytes = vec![0; 64];
        bytes[0..4].copy_from_slice(&flags.to_le_bytes());
        bytes[44..48].copy_from_slice(&(map.len() as u32).to_le_bytes());
        bytes[48..52].copy_from_slice(&64u32.to_le_bytes());
        bytes.extend(map);
        Flat(bytes)
    }

    #[test]
    fn entries_are_found() {
        let map = [entry(0, 0x9_fc00, 1, 20), entry(0xf_0000, 0x1_0000, 2, 24), entry(0x10_0000, 0x700_0000, 1, 24)].concat();
        let memory = information(&map, HAS_MAP);
        let found: Vec<_> = entries(&memory, 0).unwrap().collect();
        assert_eq!(found, [(0..0x9_fc00, 1), (0xf_0000..0x10_0000, 2), (0x10_0000..0x710_0000, 1)]);
    }

    #[test]
    fn a_missing_map_is_an_error() {
        assert!(entries(&information(&[], 0), 0).is_err());
        assert!(entries(&Flat(vec![0; 8]), 0).is_err());
    }

    proptest! {
        /// Reading terminates for any bytes.
        #[test]
        fn any_map_ends(map: Vec<u8>) {
            let _ = entries(&information(&map, HAS_MAP), 0).map(Iterator::count);
        }
    }
}
