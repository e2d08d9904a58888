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
/// Type of a range of the map: RAM that may be used.
const RAM: u32 = 1;

/// Calls `found` for each range of RAM in the map of the information at `info`.
///
/// # Errors
/// A sentence for the operator: the map is missing or not readable.
pub fn ram(memory: &impl Memory, info: u64, mut found: impl FnMut(Range<u64>)) -> Result<(), &'static str> {
    let header = memory.bytes(info, 52).ok_or("the boot loader's information is out of reach")?;
    let word = |at| u32_at(header, at).unwrap_or(0);
    let (flags, length, address) = (word(0), word(44), word(48));
    if flags & HAS_MAP == 0 {
        return Err("the boot loader gave no memory map");
    }
    let map = memory.bytes(address.into(), length.min(MAP_MAX) as usize).ok_or("the boot loader's memory map is out of reach")?;
    let mut at = 0;
    // Each entry's size does not count the field that holds it.
    while let Some(size) = u32_at(map, at)
        && size >= 20
    {
        let (Some(base), Some(length), Some(kind)) = (u64_at(map, at + 4), u64_at(map, at + 12), u32_at(map, at + 20)) else { break };
        if kind == RAM && length != 0 {
            found(base..base.saturating_add(length));
        }
        at += size as usize + 4;
    }
    Ok(())
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
    fn ranges_of_ram_are_found() {
        let map = [entry(0, 0x9_fc00, 1, 20), entry(0xf_0000, 0x1_0000, 2, 24), entry(0x10_0000, 0x700_0000, 1, 24)].concat();
        let mut found = Vec::new();
        ram(&information(&map, HAS_MAP), 0, |range| found.push(range)).unwrap();
        assert_eq!(found, [0..0x9_fc00, 0x10_0000..0x710_0000]);
    }

    #[test]
    fn a_missing_map_is_an_error() {
        assert!(ram(&information(&[], 0), 0, |_| ()).is_err());
        assert!(ram(&Flat(vec![0; 8]), 0, |_| ()).is_err());
    }

    proptest! {
        /// Reading terminates for any bytes.
        #[test]
        fn any_map_ends(map: Vec<u8>) {
            let _ = ram(&information(&map, HAS_MAP), 0, |_| ());
        }
    }
}
