//! Single frames out of a larger piece.

use super::region::Range;
use crate::PAGE_SIZE;

/// Frames in a chunk, at most.
const FRAMES: usize = 512;
/// Bytes of a full chunk: as much as a block of level 2 maps.
pub(super) const CHUNK_SIZE: u64 = FRAMES as u64 * PAGE_SIZE;

/// Up to 2 MiB of memory from which frames are handed out one by one.
///
/// Frames for tables come and go in any order. Taken from the free ranges one by one, they would leave those in
/// pieces: too many for a list of fixed size, and too small for guests' blocks.
#[derive(Debug)]
pub(super) struct Chunk {
    range: Range,
    /// A bit for each frame; those beyond the end of the range are set for good.
    used: [u64; FRAMES / 64],
    /// Frames that are not handed out.
    free: u16,
}

impl Chunk {
    /// A chunk of the whole of `range`: whole frames, at most [`CHUNK_SIZE`].
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

    /// Bytes that are not handed out.
    pub fn available(&self) -> u64 {
        u64::from(self.free) * PAGE_SIZE
    }

    /// Whether nothing is handed out.
    pub fn is_unused(&self) -> bool {
        self.available() == self.range.size()
    }

    /// Hands out a frame.
    pub fn take(&mut self) -> Option<u64> {
        let word = self.used.iter().position(|&word| word != u64::MAX)?;
        let bit = self.used[word].trailing_ones() as usize;
        self.used[word] |= 1 << bit;
        self.free -= 1;
        Some(self.range.start + (word * 64 + bit) as u64 * PAGE_SIZE)
    }

    /// Takes a frame of this chunk back. Whether it was handed out.
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
