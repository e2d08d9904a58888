//! Headers of ELF files ("Tool Interface Standard (TIS) Executable and Linking Format (ELF) Specification", 1.2, and its 64-bit form in
//! the "System V Application Binary Interface"), of either class and byte order.

use alloc::vec::Vec;
use core::ops::Range;

/// The first bytes of an ELF file.
pub const MAGIC: [u8; 4] = *b"\x7fELF";

/// `p_type` of a segment that is loaded, and of notes.
pub const PT_LOAD: u32 = 1;
pub const PT_NOTE: u32 = 4;

/// `e_machine` of 32-bit x86 and x86-64.
pub const EM_386: u16 = 3;
pub const EM_X86_64: u16 = 62;

/// Most program headers of a file, so that untrusted ones can't take much memory: linkers write some ten.
const MOST_SEGMENTS: u64 = 4096;

/// A file whose headers are inside it.
#[derive(Clone, Debug)]
pub struct ElfFile<'a> {
    bytes: &'a [u8],
    is_64_bit: bool,
    is_big_endian: bool,
    /// `e_machine`.
    pub machine: u16,
    /// `e_entry`.
    pub entry: u64,
    /// The program headers.
    pub segments: Vec<ProgramHeader>,
}

/// A program header.
#[derive(Clone, Debug)]
pub struct ProgramHeader {
    /// `p_type`.
    pub kind: u32,
    /// `p_vaddr`.
    pub virtual_address: u64,
    /// `p_paddr`.
    pub physical_address: u64,
    /// `p_memsz`.
    pub mem_len: u64,
    /// `p_filesz`.
    pub file_len: u64,
    /// The bytes of the file; `None` if they are not in it.
    pub file: Option<Range<usize>>,
}

impl<'a> ElfFile<'a> {
    /// Reads the headers.
    ///
    /// # Errors
    /// In words, what is wrong with them.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        if !bytes.starts_with(&MAGIC) {
            return Err("it has another magic number");
        }
        let is_64_bit = match bytes.get(4) {
            Some(1) => false,
            Some(2) => true,
            _ => return Err("its class is unknown"),
        };
        let is_big_endian = match bytes.get(5) {
            Some(1) => false,
            Some(2) => true,
            _ => return Err("its byte order is unknown"),
        };
        let mut file = Self { bytes, is_64_bit, is_big_endian, machine: 0, entry: 0, segments: Vec::new() };
        let (length, count) = file.table().ok_or("its headers are truncated")?;
        if count > MOST_SEGMENTS {
            return Err("it has more than 4096 program headers");
        }
        file.read(length, count).ok_or("its headers are truncated")?;
        Ok(file)
    }

    /// Size and number of the program headers.
    fn table(&self) -> Option<(u64, u64)> {
        let [length_at, count_at] = if self.is_64_bit { [54, 56] } else { [42, 44] };
        Some((self.number(length_at, 2)?, self.number(count_at, 2)?))
    }

    fn read(&mut self, length: u64, count: u64) -> Option<()> {
        self.machine = self.number(18, 2)? as u16;
        self.entry = self.address(24, 24)?;
        let table = self.address(28, 32)?;
        let least = if self.is_64_bit { 56 } else { 32 };
        if count != 0 && length < least {
            return None;
        }
        for n in 0..count {
            let at = usize::try_from(table.checked_add(n * length)?).ok()?;
            self.bytes.get(at..)?.get(..least as usize)?;
            let field = |in_32: usize, in_64: usize| self.address(at.checked_add(in_32)?, at.checked_add(in_64)?);
            let (offset, file_len) = (field(4, 8)?, field(16, 32)?);
            let range = usize::try_from(offset).ok().zip(usize::try_from(file_len).ok());
            let range = range.and_then(|(offset, length)| Some(offset..offset.checked_add(length)?));
            let segment = ProgramHeader {
                kind: self.number(at, 4)? as u32,
                virtual_address: field(8, 16)?,
                physical_address: field(12, 24)?,
                mem_len: field(20, 40)?,
                file_len,
                file: range.filter(|range| self.bytes.get(range.clone()).is_some()),
            };
            self.segments.push(segment);
        }
        Some(())
    }

    /// The contents of the note with an owner and a type, if a segment has it.
    pub fn note(&self, owner: &[u8], kind: u32) -> Option<&'a [u8]> {
        let notes = self.segments.iter().filter(|segment| segment.kind == PT_NOTE).filter_map(|segment| segment.file.clone());
        notes.filter_map(|range| self.note_in(range, owner, kind)).next()
    }

    fn note_in(&self, range: Range<usize>, owner: &[u8], kind: u32) -> Option<&'a [u8]> {
        let mut at = range.start;
        while at < range.end {
            let word = |n: usize| self.number(at.checked_add(4 * n)?, 4).and_then(|word| usize::try_from(word).ok());
            let (name_length, length) = (word(0)?, word(1)?);
            let name_at = at.checked_add(12)?;
            let contents_at = name_at.checked_add(name_length)?.checked_next_multiple_of(4)?;
            let end = contents_at.checked_add(length)?;
            let name = self.bytes.get(name_at..name_at.checked_add(name_length)?)?;
            let contents = self.bytes.get(contents_at..end).filter(|_| end <= range.end)?;
            if name.strip_suffix(&[0]) == Some(owner) && word(2)? as u32 == kind {
                return Some(contents);
            }
            at = end.checked_next_multiple_of(4)?;
        }
        None
    }

    /// A number of `size` bytes.
    fn number(&self, at: usize, size: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..)?.get(..size)?.iter();
        let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Some(if self.is_big_endian { bytes.fold(0, add) } else { bytes.rev().fold(0, add) })
    }

    /// An address, offset or size, by its places in both classes.
    fn address(&self, in_32: usize, in_64: usize) -> Option<u64> {
        if self.is_64_bit { self.number(in_64, 8) } else { self.number(in_32, 4) }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    #[test]
    fn the_number_of_program_headers_is_bounded() {
        for (count, is_fine) in [(0_u16, true), (4096, true), (4097, false), (u16::MAX, false)] {
            let mut bytes = vec![0; 64 + 56 * usize::from(count)];
            bytes[..4].copy_from_slice(&MAGIC);
            (bytes[4], bytes[5], bytes[32], bytes[54]) = (2, 1, 64, 56);
            bytes[56..58].copy_from_slice(&count.to_le_bytes());
            let file = ElfFile::parse(&bytes);
            assert_eq!(file.as_ref().map(|file| file.segments.len()).ok(), is_fine.then_some(count.into()), "{count}");
            assert_eq!(file.err(), (!is_fine).then_some("it has more than 4096 program headers"));
        }
    }
}
