//! A part of a kernel.

use core::ops::Range;

/// A segment of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its guest-physical address.
    pub gpa: u64,
    /// Its bytes in the unpacked file.
    pub file: Range<usize>,
    /// Its size in RAM, in bytes; bytes beyond the file's are zeroed.
    pub mem_len: u64,
}

impl Segment {
    /// The RAM that it takes. Its end is 2^64 - 1 if it would be above: no RAM reaches there.
    pub fn memory(&self) -> Range<u64> {
        self.gpa..self.gpa.saturating_add(self.mem_len)
    }
}
