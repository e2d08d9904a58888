//! Single-frame allocation from a chunk, by bitmap.

use super::region::Range;
use crate::PAGE_SIZE;

/// Maximum number of frames in a chunk.
const FRAMES: usize = 512;
/// Bytes of a full chunk: one level 2 block.
pub(super) const CHUNK_SIZE: u64 = FRAMES as u64 * PAGE_SIZE;

/// Up to 2 MiB of memory from which single frames are allocated.
///
/// Frames for tables are freed in any order. Allocated directly from the free ranges, they would fragment
/// those beyond the capacity of the fixed-size list, and into ranges too small for guests' blocks.
#[derive(Debug)]
pub(super) struct Chunk {
    range: Range,
    /// One bit per frame; bits beyond the end of the range are always set.
    used: [u64; FRAMES / 64],
    /// Number of unallocated frames.
    free: u16,
}

impl Chunk {
    /// Creates a chunk that covers `range`: whole frames, at most [`CHUNK_SIZE`].
    pub fn new(range: Range) -> Self {
        let frames = (range.size() / PAGE_SIZE).min(FRAMES as u64) as usize;
        let mut used = [u64::MAX; FRAMES / 64];
        for index in 0..frames {
            used[index / 64] &= !(1 << (index % 64));
        }
        Self { range, used, free: frames as u16 }
    }

    pub fn range(&self) -> Range {
        self.range
    }

    /// Unallocated bytes.
    pub fn available(&self) -> u64 {
        u64::from(self.free) * PAGE_SIZE
    }

    /// Whether no frame is allocated.
    pub fn is_unused(&self) -> bool {
        self.available() == self.range.size()
    }

    /// Allocates a frame.
    pub fn take(&mut self) -> Option<u64> {
        let word = self.used.iter().position(|&word| word != u64::MAX)?;
        let bit = self.used[word].trailing_ones() as usize;
        self.used[word] |= 1 << bit;
        self.free -= 1;
        Some(self.range.start + (word * 64 + bit) as u64 * PAGE_SIZE)
    }

    /// Frees a frame of this chunk. Returns whether it was allocated.
    pub fn give_back(&mut self, frame: u64) -> bool {
        let index = ((frame - self.range.start) / PAGE_SIZE) as usize;
        let mask = 1 << (index % 64);
        match self.used.get_mut(index / 64) {
            Some(word) if *word & mask != 0 => {
                *word &= !mask;
                self.free += 1;
                true
            }
            _ => false,
        }
    }
}
