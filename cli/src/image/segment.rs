//! A part of a kernel.

use std::ops::Range;

/// A part of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it goes: a guest-physical address.
    pub gpa: u64,
    /// Its bytes in the unpacked file.
    pub file: Range<usize>,
    /// What it takes in RAM, in bytes; what the file doesn't give is zero.
    pub mem_len: u64,
}

impl Segment {
    /// The RAM that it takes.
    pub fn memory(&self) -> Range<u64> {
        self.gpa..self.gpa + self.mem_len
    }
}
