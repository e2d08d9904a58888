//! A writer of flattened device trees (Devicetree Specification 0.4, chapter 5) that needs no allocator.

use core::ops::Range;

use heapless::Vec;

/// The header's length, which is where the memory reservations begin.
const HEADER: usize = 40;
const VERSION: u32 = 17;
const COMPATIBLE_VERSION: u32 = 16;

/// A tree under construction. If space runs out, everything further is dropped, and [`finish`](Self::finish) returns `None`.
pub struct TreeWriter<'a> {
    to: &'a mut [u8],
    at: usize,
    /// Offset of the structure block.
    structure: usize,
    /// Strings block of the tree that is being extended; empty for a new one.
    old_strings: &'a [u8],
    /// Names of further properties, each with a NUL.
    strings: Vec<u8, 512>,
    failed: bool,
}

impl<'a> TreeWriter<'a> {
    /// Begins a tree with these memory reservations.
    pub fn new(reserved: impl Iterator<Item = Range<u64>>, to: &'a mut [u8]) -> Self {
        Self::extending(&[], &[], reserved, to)
    }

    /// Begins a tree that starts with the tokens `structure` of another one, whose strings block is `strings`.
    pub fn extending(structure: &[u8], strings: &'a [u8], reserved: impl Iterator<Item = Range<u64>>, to: &'a mut [u8]) -> Self {
        let mut tree = Self { to, at: HEADER, structure: 0, old_strings: strings, strings: Vec::new(), failed: false };
        for range in reserved {
            tree.double(range.start);
            // A reservation of the tree that is extended may wrap around.
            tree.double(range.end.wrapping_sub(range.start));
        }
        tree.double(0);
        tree.double(0);
        tree.structure = tree.at;
        tree.bytes(structure);
        tree
    }

    /// Begins a node.
    pub fn begin(&mut self, name: &str) {
        self.begin_at(name, None);
    }

    /// Begins a node whose name ends with an address.
    pub fn begin_at(&mut self, name: &str, address: Option<u64>) {
        self.word(1);
        self.bytes(name.as_bytes());
        if let Some(address) = address {
            self.bytes(b"@");
            // Without leading zeros, but for the last digit.
            let digits = (u64::BITS - (address | 1).leading_zeros()).div_ceil(4);
            for digit in (0..digits).rev() {
                let digit = (address >> (4 * digit) & 0xf) as u8;
                self.bytes(&[if digit < 10 { b'0' + digit } else { b'a' - 10 + digit }]);
            }
        }
        self.bytes(&[0]);
        self.align();
    }

    /// Ends a node.
    pub fn end(&mut self) {
        self.word(2);
    }

    /// A property without a value.
    pub fn empty(&mut self, name: &str) {
        self.property(name, 0);
    }

    /// A property with a text.
    pub fn text(&mut self, name: &str, text: &str) {
        self.property(name, text.len() + 1);
        self.bytes(text.as_bytes());
        self.bytes(&[0]);
        self.align();
    }

    /// A property with any bytes.
    pub fn data(&mut self, name: &str, data: &[u8]) {
        self.property(name, data.len());
        self.bytes(data);
        self.align();
    }

    /// A property with cells.
    pub fn cells(&mut self, name: &str, cells: &[u32]) {
        self.property(name, 4 * cells.len());
        cells.iter().for_each(|&cell| self.word(cell));
    }

    /// `reg`, with two cells for each address and size.
    pub fn reg(&mut self, ranges: impl Iterator<Item = Range<u64>> + Clone) {
        self.property("reg", 16 * ranges.clone().count());
        for range in ranges {
            self.double(range.start);
            self.double(range.end - range.start);
        }
    }

    /// The end of the tree. Returns its length.
    pub fn finish(mut self) -> Option<usize> {
        self.word(9);
        let strings = self.at;
        let names = core::mem::take(&mut self.strings);
        self.bytes(self.old_strings);
        self.bytes(&names);
        let length = self.at;
        self.at = 0;
        let header = [
            0xd00d_feed,
            length as u32,
            self.structure as u32,
            strings as u32,
            HEADER as u32,
            VERSION,
            COMPATIBLE_VERSION,
            0,
            (self.old_strings.len() + names.len()) as u32,
            (strings - self.structure) as u32,
        ];
        header.into_iter().for_each(|word| self.word(word));
        (!self.failed).then_some(length)
    }

    /// Writes the head of a property of `len` bytes.
    fn property(&mut self, name: &str, length: usize) {
        let at = self.string(name);
        self.word(3);
        self.word(length as u32);
        self.word(at);
    }

    /// The offset of a property's name.
    fn string(&mut self, name: &str) -> u32 {
        let found = self.strings.windows(name.len() + 1).position(|window| window.split_last() == Some((&0, name.as_bytes())));
        let at = found.unwrap_or(self.strings.len());
        if found.is_none() {
            self.failed |= self.strings.extend_from_slice(name.as_bytes()).is_err() || self.strings.push(0).is_err();
        }
        (self.old_strings.len() + at) as u32
    }

    fn word(&mut self, word: u32) {
        self.bytes(&word.to_be_bytes());
    }

    fn double(&mut self, double: u64) {
        self.bytes(&double.to_be_bytes());
    }

    fn align(&mut self) {
        while !self.failed && !self.at.is_multiple_of(4) {
            self.bytes(&[0]);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        match self.to.get_mut(self.at..).and_then(|to| to.get_mut(..bytes.len())) {
            Some(to) => {
                to.copy_from_slice(bytes);
                self.at += bytes.len();
            }
            None => self.failed = true,
        }
    }
}
