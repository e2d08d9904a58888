//! Pieces of RAM in a window of memory: a table, followed by pages.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | number of entries, little-endian |
//! | 8 + 8 *n* | entry *n*: an address in the guest's RAM, a multiple of the page size, with [`BLOCK`] in bit 0, [`ZERO`] in bit 1 |
//! | 4096 (1 + *k*) | contents of the page of the *k*th entry with neither |
//!
//! While a guest runs, only pages are copied: there is no entry with [`BLOCK`], and pages of zeros have [`ZERO`].
//! Otherwise an entry with [`BLOCK`] begins a block (2 MiB) that the guest has touched: the pages of it that follow have these
//! contents, all others are zero. Blocks without an entry are untouched: they get files' contents, or zeros, when
//! the guest first accesses them.

/// Size of a window in bytes.
pub const WINDOW: usize = 64 << 10;
/// Size of a page in bytes.
pub const PAGE: usize = 4096;
/// Pages in a piece.
pub const PAGES: usize = WINDOW / PAGE - 1;
/// Most entries of a piece.
pub const ENTRIES: usize = (PAGE - FIRST) / 8;
/// In an entry: it begins a block.
pub const BLOCK: u64 = 1;
/// In an entry: the page is zero.
pub const ZERO: u64 = 1 << 1;
/// Size of a block in bytes.
pub const BLOCK_SIZE: u64 = 2 << 20;

const FIRST: usize = 8;

/// An entry of a piece's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A block begins here.
    Block(u64),
    /// A page: its address, and its offset in the piece.
    Page(u64, usize),
    /// A page of zeros: its address.
    Zero(u64),
}

/// Tables are read and written through these, one word at a time: another program may have the window mapped.
pub trait Words {
    /// Reads the word at `offset`, a multiple of 8 below [`PAGE`].
    fn get(&self, offset: usize) -> u64;
    /// Writes it.
    fn set(&mut self, offset: usize, word: u64);
}

impl Words for [u8] {
    fn get(&self, offset: usize) -> u64 {
        let word = self.get(offset..).and_then(|rest| rest.first_chunk());
        word.map_or(0, |word| u64::from_le_bytes(*word))
    }

    fn set(&mut self, offset: usize, word: u64) {
        if let Some(place) = self.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
            *place = word.to_le_bytes();
        }
    }
}

/// Writer of a piece's table.
#[derive(Debug, Default)]
pub struct Builder {
    entries: usize,
    pages: usize,
}

impl Builder {
    /// An empty piece.
    pub const fn new() -> Self {
        Self { entries: 0, pages: 0 }
    }

    /// Whether a block's entry and a page still fit.
    pub const fn has_room(&self) -> bool {
        self.entries + 2 <= ENTRIES && self.pages < PAGES
    }

    /// Begins the block at an address.
    pub fn block(&mut self, words: &mut (impl Words + ?Sized), address: u64) {
        self.entry(words, address | BLOCK);
    }

    /// Adds a page. Returns the offset for its contents.
    pub fn page(&mut self, words: &mut (impl Words + ?Sized), address: u64) -> usize {
        self.entry(words, address);
        self.pages += 1;
        self.pages * PAGE
    }

    /// Adds a page of zeros.
    pub fn zero(&mut self, words: &mut (impl Words + ?Sized), address: u64) {
        self.entry(words, address | ZERO);
    }

    fn entry(&mut self, words: &mut (impl Words + ?Sized), entry: u64) {
        words.set(FIRST + 8 * self.entries, entry);
        self.entries += 1;
    }

    /// Completes the table. Returns the piece's length; 0 for an empty piece.
    pub fn finish(&self, words: &mut (impl Words + ?Sized)) -> usize {
        words.set(0, self.entries as u64);
        if self.entries == 0 { 0 } else { (1 + self.pages) * PAGE }
    }
}

/// The entries of a piece of `length` bytes. Ends early at an entry without room for its page.
pub fn entries<W: Words + ?Sized>(words: &W, length: usize) -> impl Iterator<Item = Entry> {
    let count = (words.get(0) as u32 as usize).min(ENTRIES);
    let (mut next, mut pages) = (0, 0);
    core::iter::from_fn(move || {
        if next == count {
            return None;
        }
        let entry = words.get(FIRST + 8 * next);
        next += 1;
        if entry & BLOCK != 0 {
            return Some(Entry::Block(entry & !(BLOCK_SIZE - 1)));
        }
        if entry & ZERO != 0 {
            return Some(Entry::Zero(entry & !(PAGE as u64 - 1)));
        }
        pages += 1;
        ((1 + pages) * PAGE <= length.min(WINDOW)).then_some(Entry::Page(entry & !(PAGE as u64 - 1), pages * PAGE))
    })
}

/// Number of bytes of a piece's table that are in use.
pub fn table_length<W: Words + ?Sized>(words: &W) -> usize {
    FIRST + 8 * (words.get(0) as u32 as usize).min(ENTRIES)
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_piece_is_read_as_it_was_written() {
        let mut window = vec![0u8; WINDOW];
        let mut builder = Builder::new();
        let mut expected = Vec::new();
        let mut address = 0x4000_0000;
        while builder.has_room() {
            builder.block(&mut window[..], address);
            expected.push(Entry::Block(address));
            let page = address + 0x5000;
            expected.push(Entry::Page(page, builder.page(&mut window[..], page)));
            address += BLOCK_SIZE;
        }
        let length = builder.finish(&mut window[..]);
        assert_eq!((length, expected.len()), (WINDOW, 2 * PAGES));
        assert_eq!(entries(&window[..], length).collect::<Vec<_>>(), expected);
        assert_eq!(entries(&window[..], length - 1).count(), expected.len() - 1, "cut off");
        assert_eq!(table_length(&window[..]), 8 + 16 * PAGES);
        assert_eq!(Builder::new().finish(&mut window[..]), 0);
    }

    proptest! {
        #[test]
        fn any_table_stays_within_the_piece(table in proptest::collection::vec(any::<u64>(), 0..600), length in 0usize..2 * WINDOW) {
            let mut window = vec![0u8; PAGE];
            for (n, word) in table.iter().enumerate() {
                Words::set(&mut window[..], 8 * n, *word);
            }
            for entry in entries(&window[..], length) {
                if let Entry::Page(address, offset) = entry {
                    prop_assert!(address.is_multiple_of(PAGE as u64) && offset >= PAGE && offset + PAGE <= length.min(WINDOW));
                }
            }
        }
    }
}
