//! Files of the boot medium that its configuration file names: how UEFI firmware's caller leaves them in memory, and how they
//! are found there later.
//!
//! They are in one block of memory. Each begins with a page for its name, and its bytes follow in whole pages:
//!
//! | bytes of the page | content |
//! | --- | --- |
//! | 0..8 | length of the file in bytes |
//! | 8..16 | 1 if all of it was read, 0 if not; else the bytes of memory that firmware lacked for all files |
//! | 16..24 | length of the name in bytes |
//! | 24.. | the name in UTF-8 |
//!
//! The writing part runs where firmware loaded the image: it uses no pointers in constant data.

use core::ops::Range;

const PAGE: usize = 4096;
const NAME: usize = 24;

/// Length of a name in UTF-16, at most: of FAT's long names.
pub const LONGEST_NAME: usize = 255;

/// The memory for the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Addresses of the block with the files.
    At(Range<u64>),
    /// There is no block: firmware had no memory for so many bytes, nor for the files' names.
    Missing(u64),
    /// There is no block: firmware can't read the files' folder.
    Unreadable,
}

impl Block {
    /// Addresses of the block with the files, if there is one.
    pub fn range(&self) -> Option<&Range<u64>> {
        match self {
            Self::At(range) => Some(range),
            Self::Missing(_) | Self::Unreadable => None,
        }
    }

    /// The block by two numbers, as [`Self::words`] returns them.
    pub(crate) fn from_words(start: u64, end: u64) -> Self {
        match (start, end) {
            (0, 0) => Self::Unreadable,
            (0, size) => Self::Missing(size),
            (start, end) => Self::At(start..end),
        }
    }

    /// Start and end of the block; or 0, which is no block's address, and the number of bytes, which is 0 for an unreadable folder.
    pub(crate) fn words(&self) -> [u64; 2] {
        match *self {
            Self::At(Range { start, end }) => [start, end],
            Self::Missing(size) => [0, size],
            Self::Unreadable => [0, 0],
        }
    }
}

/// Whether `text` has a name in UTF-16 as a string of TOML, or a part of a path in one; letters of ASCII in upper and lower case are the
/// same, as in FAT's names. False for names that are empty or too long.
pub fn is_named(text: &[u8], name: &[u16]) -> bool {
    let mut utf8 = [0; 3 * LONGEST_NAME];
    match encode(name, &mut utf8) {
        Some(length @ 1..) => text.windows(length + 2).any(|window| match window {
            [b'"' | b'\'' | b'/', inner @ .., b'"' | b'\'' | b'/'] => {
                utf8.get(..length).is_some_and(|name| inner.eq_ignore_ascii_case(name))
            }
            _ => false,
        }),
        _ => false,
    }
}

/// Writes a name to `utf8`. Returns its length; `None` if it is not well-formed, or too long.
fn encode(name: &[u16], utf8: &mut [u8]) -> Option<usize> {
    let mut length = 0;
    for letter in char::decode_utf16(name.iter().copied()) {
        let letter = letter.ok()?;
        letter.encode_utf8(utf8.get_mut(length..)?.get_mut(..letter.len_utf8())?);
        length += letter.len_utf8();
    }
    Some(length)
}

/// Memory for a file of `length` bytes, in bytes; `None` if there is no such number.
pub fn room(length: u64) -> Option<u64> {
    length.checked_next_multiple_of(PAGE as u64)?.checked_add(PAGE as u64)
}

/// Memory for files that need `size` bytes, and one more of `length` bytes: whole pages, at most all of the address space.
pub fn room_with(size: u64, length: u64) -> u64 {
    size.saturating_add(room(length).unwrap_or(u64::MAX)) & !(PAGE as u64 - 1)
}

/// Writes files to a block, one behind the other.
pub struct Writer<'b> {
    /// The rest of the block; empty from the first file on for which there was no room.
    rest: &'b mut [u8],
}

impl<'b> Writer<'b> {
    /// Begins a block, whose contents are arbitrary.
    pub fn new(block: &'b mut [u8]) -> Self {
        let mut writer = Self { rest: block };
        writer.end();
        writer
    }

    /// Adds a file of `length` bytes, which `read` reads: it returns whether it could. Without room, or if the name is too long, this file
    /// and all further ones are left out.
    pub fn add(&mut self, name: &[u16], length: u64, read: impl FnOnce(&mut [u8]) -> bool) {
        if let Some((state, bytes, rest)) = begin(core::mem::take(&mut self.rest), name, length) {
            state.fill(0);
            if let (true, Some(first)) = (read(bytes), state.first_mut()) {
                *first = 1;
            }
            self.rest = rest;
            self.end();
        }
    }

    /// Adds a file that was not read, as firmware had no memory for the `size` bytes of all files.
    pub fn add_unread(&mut self, name: &[u16], size: u64) {
        if let Some((state, _, rest)) = begin(core::mem::take(&mut self.rest), name, 0) {
            state.copy_from_slice(&size.to_le_bytes());
            self.rest = rest;
            self.end();
        }
    }

    /// Clears the page of the next file: until it is there, the files end here.
    fn end(&mut self) {
        self.rest.iter_mut().take(PAGE).for_each(|byte| *byte = 0);
    }
}

/// Begins a file at the start of `block`: writes its first page but for the state, and returns that, the memory for its bytes, and the
/// rest of the block. `None` without room, or if its name is too long: the page has no name then.
fn begin<'b>(block: &'b mut [u8], name: &[u16], length: u64) -> Option<(&'b mut [u8], &'b mut [u8], &'b mut [u8])> {
    let (whole, rest) = block.split_at_mut_checked(usize::try_from(room(length)?).ok()?)?;
    let (page, bytes) = whole.split_at_mut_checked(PAGE)?;
    let name_length = encode(name, page.get_mut(NAME..)?)?;
    page.get_mut(..8)?.copy_from_slice(&length.to_le_bytes());
    page.get_mut(16..24)?.copy_from_slice(&(name_length as u64).to_le_bytes());
    Some((page.get_mut(8..16)?, bytes.get_mut(..usize::try_from(length).ok()?)?, rest))
}

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File<'a> {
    /// Its name, as the file system has it.
    pub name: &'a str,
    /// Its bytes.
    pub bytes: Result<&'a [u8], Unread>,
}

/// Reason for which a file was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Firmware could not read it.
    Broken,
    /// Firmware had no memory for so many bytes, of all files.
    NoMemory(u64),
}

/// The files of a block. They end where the block has no further one.
pub fn files(block: &[u8]) -> impl Iterator<Item = File<'_>> {
    let mut rest = block;
    core::iter::from_fn(move || {
        let word = |at: usize| Some(u64::from_le_bytes(*rest.get(at..)?.first_chunk()?));
        let (length, state, name_length) = (word(0)?, word(8)?, usize::try_from(word(16)?).ok()?);
        let (whole, further) = rest.split_at_checked(usize::try_from(room(length)?).ok()?)?;
        let (page, bytes) = whole.split_at_checked(PAGE)?;
        let name = core::str::from_utf8(page.get(NAME..)?.get(..name_length)?).ok()?;
        let bytes = match state {
            1 => Ok(bytes.get(..usize::try_from(length).ok()?)?),
            0 => Err(Unread::Broken),
            size => Err(Unread::NoMemory(size)),
        };
        // The rest of a block that is not full.
        if name.is_empty() {
            return None;
        }
        rest = further;
        Some(File { name, bytes })
    })
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn utf16(name: &str) -> Vec<u16> {
        name.encode_utf16().collect()
    }

    #[test]
    fn files_are_found_again() {
        let mut block = vec![0xaa; 10 * PAGE];
        let mut writer = Writer::new(&mut block);
        let write = |bytes: &mut [u8]| {
            bytes.fill(7);
            true
        };
        writer.add(&utf16("vmlinuz-6.1"), 5000, write);
        writer.add(&utf16("größe"), 0, write);
        writer.add(&utf16("broken"), 1, |_| false);
        let found: Vec<_> = files(&block).collect();
        let bytes = vec![7; 5000];
        assert_eq!(found[0], File { name: "vmlinuz-6.1", bytes: Ok(&bytes) });
        assert_eq!(found[1..], [File { name: "größe", bytes: Ok(&[]) }, File { name: "broken", bytes: Err(Unread::Broken) }]);
    }

    #[test]
    fn files_end_at_one_without_room() {
        let unread = |_: &mut [u8]| panic!("there is no room");
        let first = File { name: "a", bytes: Ok(&[7; 5]) };
        for (grown, length) in [("b", 4 * PAGE as u64 + 1), ("b", u64::MAX), (&"x".repeat(5000), 1)] {
            let mut block = vec![0xaa; 6 * PAGE];
            let mut writer = Writer::new(&mut block);
            writer.add(&utf16("a"), 5, |bytes| {
                bytes.fill(7);
                true
            });
            writer.add(&utf16(grown), length, unread);
            writer.add(&utf16("c"), 1, unread);
            assert_eq!(files(&block).collect::<Vec<_>>(), [first]);
        }
        // Files that are too large.
        let mut block = vec![0xaa; 2 * PAGE];
        let mut writer = Writer::new(&mut block);
        ["a", "b", "c"].iter().for_each(|name| writer.add_unread(&utf16(name), 1 << 40));
        let unread = |name| File { name, bytes: Err(Unread::NoMemory(1 << 40)) };
        assert_eq!(files(&block).collect::<Vec<_>>(), ["a", "b"].map(unread));
        // A block whose memory had these files before.
        let mut block = vec![0; 2 * PAGE];
        Writer::new(&mut block).add(&utf16("old"), 1, |_| true);
        Writer::new(&mut block);
        assert_eq!(files(&block).count(), 0);
    }

    #[test]
    fn a_block_that_is_missing_is_no_memory() {
        for (block, range) in
            [(Block::At(1 << 32..1 << 33), Some(&(1 << 32..1 << 33))), (Block::Missing(1 << 40), None), (Block::Unreadable, None)]
        {
            let [start, end] = block.words();
            assert_eq!(Block::from_words(start, end), block);
            assert_eq!(block.range(), range);
        }
    }

    #[test]
    fn the_room_of_files_is_whole_pages() {
        assert_eq!(room_with(0, 0), PAGE as u64);
        assert_eq!(room_with(room_with(0, 1), PAGE as u64 + 1), 5 * PAGE as u64);
        let all = u64::MAX - (PAGE as u64 - 1);
        assert_eq!([room_with(0, u64::MAX), room_with(8192, u64::MAX - 8192), room_with(all, 5)], [all; 3]);
    }

    #[test]
    fn names_are_found_in_the_text() {
        let text = b"# vmlinuz-6.1\nkernel = \"a-boot/vmlinuz\"\nappend = 'x'\ninitrd = \"gr\xc3\xb6\xc3\x9fe\"\n";
        for name in ["vmlinuz", "VMLINUZ", "Vmlinuz", "größe", "x"] {
            assert!(is_named(text, &utf16(name)), "{name}");
        }
        for name in [
            "",
            "linuz",
            "vmlinu",
            "el",
            "boot",
            "b",
            "v",
            " = ",
            "vmlinuz-6.1",
            "boot\\vmlinuz",
            &"x".repeat(1000),
            &"\u{ffff}".repeat(300),
        ] {
            assert!(!is_named(text, &utf16(name)), "{name}");
        }
        assert!(!is_named(text, &[0xd800]) && !is_named(b"", &utf16("a")) && !is_named(b"\"a", &utf16("a")));
    }

    proptest! {
        #[test]
        fn any_block_is_read(size in 0..3 * PAGE, state in 0..3_u8, length in 0..3 * PAGE as u64, name in 0..5000_u64, fill: u8) {
            let mut block = vec![fill; size];
            if size >= NAME {
                block[..8].copy_from_slice(&length.to_le_bytes());
                block[8] = state;
                block[16..24].copy_from_slice(&name.to_le_bytes());
            }
            prop_assert!(files(&block).count() <= 3);
        }
    }
}
