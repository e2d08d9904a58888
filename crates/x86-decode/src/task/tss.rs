//! The task-state segment ("Task-State Segment (TSS)", "16-Bit Task-State Segment (TSS)").

use crate::descriptor::{BUSY, TASK_16};

/// Size of the link to the previous task in bytes.
pub(super) const LINK: usize = 2;

/// Size of the largest TSS that a switch accesses, in bytes.
pub(super) const LARGEST: usize = 104;

/// Number of words before the segments.
pub(super) const WORDS: usize = 10;

/// The layout of a TSS. From the instruction pointer on, its words are consecutive: flags, general registers, segments, LDT.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Size of a word in bytes.
    pub(super) word: usize,
    /// Offset of the instruction pointer.
    pub(super) first: usize,
    /// Number of segment registers.
    pub(super) segments: usize,
    /// Minimum size of a TSS in bytes.
    pub(super) size: usize,
}

impl Layout {
    /// Returns the layout of a TSS with these access rights.
    pub(super) const fn new(rights: u32) -> Self {
        if rights & 0x1f & !BUSY == TASK_16 {
            Self { word: 2, first: 0x0e, segments: 4, size: 44 }
        } else {
            Self { word: 4, first: 0x20, segments: 6, size: LARGEST }
        }
    }

    pub(super) const fn is_wide(self) -> bool {
        self.word == 4
    }

    /// Bytes that a switch saves, from the instruction pointer on.
    pub(super) const fn saved(self) -> usize {
        (WORDS + self.segments) * self.word
    }

    pub(super) fn word(self, tss: &[u8], offset: usize) -> u32 {
        let bytes = tss.get(offset..).unwrap_or_default();
        bytes.iter().take(self.word).rev().fold(0, |value, &byte| value << 8 | u32::from(byte))
    }
}
