//! Boot information of a Multiboot 2 loader (Multiboot2 Specification 2.0, "Boot information format").

use core::ops::Range;

use crate::Memory;
use crate::bytes::{u8_at, u32_at, u64_at};
use crate::frame_buffer::FrameBuffer;

/// EAX at entry from a Multiboot 2 loader.
pub const MAGIC: u32 = 0x36d7_6289;

/// The largest information that is read, in bytes: it has firmware's memory map in three forms.
const MOST: u32 = 256 << 10;
/// Size of the information's header, and that of a tag, in bytes.
const HEADER: usize = 8;

/// Types of tags.
mod tag {
    pub const END: u32 = 0;
    pub const MEMORY_MAP: u32 = 6;
    pub const FRAME_BUFFER: u32 = 8;
    pub const OLD_RSDP: u32 = 14;
    pub const NEW_RSDP: u32 = 15;
}

/// The information.
#[derive(Clone, Copy, Debug)]
pub struct Information<'a>(&'a [u8]);

impl<'a> Information<'a> {
    /// Reads the information at `info`.
    ///
    /// # Errors
    /// A sentence for the operator: it is not readable.
    pub fn read(memory: &'a impl Memory, info: u64) -> Result<Self, &'static str> {
        let length = memory.bytes(info, HEADER).and_then(|header| u32_at(header, 0));
        let bytes = length.and_then(|length| memory.bytes(info, length.min(MOST) as usize));
        bytes.map(Self).ok_or("the boot loader's information is out of reach")
    }

    /// The contents of the first tag of a type, behind the tag's header.
    fn tag(self, wanted: u32) -> Option<&'a [u8]> {
        let mut rest = self.0.get(HEADER..)?;
        loop {
            let (kind, size) = (u32_at(rest, 0)?, u32_at(rest, 4)? as usize);
            if kind == tag::END || size < HEADER {
                return None;
            }
            if kind == wanted {
                return rest.get(HEADER..size);
            }
            rest = rest.get(size.checked_next_multiple_of(8)?..)?;
        }
    }

    /// Returns the entries of the memory map: ranges of addresses, and their types in a BIOS's map
    /// ([`e820`](crate::e820)).
    ///
    /// # Errors
    /// A sentence for the operator: there is no map.
    pub fn entries(self) -> Result<impl Iterator<Item = (Range<u64>, u32)> + Clone + use<'a>, &'static str> {
        const LEAST_ENTRY: usize = 24;
        let map = self.tag(tag::MEMORY_MAP).ok_or("the boot loader gave no memory map")?;
        let size = u32_at(map, 0).unwrap_or(0) as usize;
        if size < LEAST_ENTRY {
            return Err("the boot loader's memory map is malformed");
        }
        let entries = map.get(8..).unwrap_or(&[]).chunks_exact(size);
        Ok(entries.filter_map(|entry| {
            let (base, length, kind) = (u64_at(entry, 0)?, u64_at(entry, 8)?, u32_at(entry, 16)?);
            Some((base..base.saturating_add(length), kind))
        }))
    }

    /// A copy of the root pointer of ACPI tables: of version 2, or else 1.
    pub fn rsdp(self) -> Option<&'a [u8]> {
        self.tag(tag::NEW_RSDP).or_else(|| self.tag(tag::OLD_RSDP))
    }

    /// The frame buffer, if it has 32 bits per pixel.
    pub fn frame_buffer(self) -> Option<FrameBuffer> {
        const COLORS: u8 = 1;
        let tag = self.tag(tag::FRAME_BUFFER)?;
        let [stride, width, height] = [8, 12, 16].map(|at| u32_at(tag, at));
        let buffer = FrameBuffer { address: u64_at(tag, 0)?, width: width?, height: height?, stride: stride? };
        buffer.checked(buffer.len()).filter(|_| (u8_at(tag, 20), u8_at(tag, 21)) == (Some(32), Some(COLORS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::Flat;
    use proptest::prelude::*;
    use std::{vec, vec::Vec};

    fn tag(kind: u32, contents: &[u8]) -> Vec<u8> {
        let mut bytes = [kind.to_le_bytes(), (8 + contents.len() as u32).to_le_bytes()].concat();
        bytes.extend(contents);
        bytes.resize(bytes.len().next_multiple_of(8), 0xff);
        bytes
    }

    fn information(tags: &[Vec<u8>]) -> Flat {
        let tags = tags.concat();
        let mut bytes = [(8 + tags.len() as u32).to_le_bytes(), [0; 4]].concat();
        bytes.extend(tags);
        Flat(bytes)
    }

    fn map(size: u32, entries: &[(u64, u64, u32)]) -> Vec<u8> {
        let mut bytes = [size.to_le_bytes(), [0; 4]].concat();
        for (base, length, kind) in entries {
            let entry = bytes.len();
            bytes.extend(base.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.resize(entry + size as usize, 0xff);
        }
        tag(tag::MEMORY_MAP, &bytes)
    }

    fn screen(bits: u8, kind: u8) -> Vec<u8> {
        let words = [0xfd00_0000_u32, 0, 4096, 1024, 768].map(u32::to_le_bytes).concat();
        tag(tag::FRAME_BUFFER, &[&words[..], &[bits, kind, 0, 0]].concat())
    }

    #[test]
    fn tags_are_read() {
        let entries = [(0, 0x9_fc00, 1), (0xf_0000, 0x1_0000, 2), (0x10_0000, 0x700_0000, 1), (0x900_0000, 0, 1)];
        for size in [24, 40] {
            let memory =
                information(&[tag(1, b"words\0"), map(size, &entries), tag(14, b"old"), tag(15, b"new"), screen(32, 1), tag(0, &[])]);
            let read = Information::read(&memory, 0).unwrap();
            let found: Vec<_> = read.entries().unwrap().collect();
            let expected = entries.map(|(base, length, kind)| (base..base + length, kind));
            assert_eq!(found, expected);
            assert_eq!(read.rsdp(), Some(&b"new"[..]));
            let buffer = FrameBuffer { address: 0xfd00_0000, width: 1024, height: 768, stride: 4096 };
            assert_eq!(read.frame_buffer(), Some(buffer));
        }
        let memory = information(&[tag(14, b"old"), screen(24, 1), tag(0, &[]), tag(15, b"behind the end")]);
        let read = Information::read(&memory, 0).unwrap();
        assert_eq!((read.rsdp(), read.frame_buffer()), (Some(&b"old"[..]), None));
        assert_eq!(Information::read(&information(&[screen(32, 2)]), 0).unwrap().frame_buffer(), None, "text");
    }

    #[test]
    fn a_missing_map_is_an_error() {
        assert!(Information::read(&Flat(vec![0; 4]), 0).is_err());
        assert!(Information::read(&Flat(vec![9; 16]), 0).is_err(), "longer than memory");
        for tags in [&[][..], &[tag(0, &[])], &[map(0, &[])], &[map(16, &[(0, 4096, 1)])], &[tag(6, &[])]] {
            assert!(Information::read(&information(tags), 0).unwrap().entries().is_err());
        }
    }

    proptest! {
        /// Reading terminates for any bytes.
        #[test]
        fn any_information_ends(bytes: Vec<u8>, kind in 0_u32..20) {
            for memory in [Flat(bytes.clone()), information(&[tag(kind, &bytes)])] {
                if let Ok(read) = Information::read(&memory, 0) {
                    let _ = (read.entries().map(Iterator::count), read.rsdp(), read.frame_buffer());
                }
            }
        }
    }
}
