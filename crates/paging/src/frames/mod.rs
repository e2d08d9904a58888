//! Physical memory allocator.
//!
//! Serves two kinds of requests: single frames for translation tables, many and without placement
//! constraints, and guest memory: large ranges, placed so that large blocks can map them.

mod chunk;
mod error;
mod region;

pub use error::Error;
pub use region::Region;

use crate::PAGE_SIZE;
use chunk::{CHUNK_SIZE, Chunk};
use core::cmp::Reverse;
use heapless::Vec;
use region::{Range, RangeSet};

/// A part of a guest's memory that is contiguous in guest-physical and physical addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First guest-physical address.
    pub gpa: u64,
    /// First physical address.
    pub pa: u64,
    /// Bytes.
    pub size: u64,
}

/// Maximum number of pieces of one guest's memory.
pub const MAX_PIECES: usize = 16;

/// Maximum number of chunks: 128 MiB of single frames.
const MAX_CHUNKS: usize = 64;

/// The block sizes of the 4 KiB granule, largest first.
const BLOCK_SIZES: [u64; 3] = [1 << 30, 1 << 21, PAGE_SIZE];

/// Physical memory, with at most `N` separate free regions at a time.
///
/// If blocks are only freed whole, every free succeeds with an `N` of: initial regions, plus blocks allocated
/// at a time (each piece of a guest's memory counts), plus 64.
#[derive(Debug)]
pub struct Frames<const N: usize> {
    /// All memory under management, free or not.
    managed: RangeSet<N>,
    /// Memory neither allocated nor in a chunk.
    free: RangeSet<N>,
    chunks: Vec<Chunk, MAX_CHUNKS>,
}

impl<const N: usize> Frames<N> {
    /// Manages all of `ram` that is not `reserved`.
    ///
    /// Regions may overlap and have any order and alignment. Frames only partly in RAM, or partly
    /// reserved, are unused.
    ///
    /// # Errors
    /// [`Error::InvalidRegion`] if a region wraps around, [`Error::TooManyRegions`].
    pub fn new(ram: impl IntoIterator<Item = Region>, reserved: impl IntoIterator<Item = Region>) -> Result<Self, Error> {
        let mut managed = RangeSet::new();
        for region in ram {
            if let Some(region) = region.inner()? {
                managed.insert(region.into())?;
            }
        }
        for region in reserved {
            if let Some(region) = region.outer()? {
                managed.remove(region.into())?;
            }
        }
        Ok(Self { free: managed.clone(), managed, chunks: Vec::new() })
    }

    /// Total bytes under management, free or not.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.managed.total()
    }

    /// Free bytes.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.free.total() + self.chunks.iter().map(Chunk::available).sum::<u64>()
    }

    /// Allocates one frame, for a table. Its contents are arbitrary.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooManyRegions`].
    pub fn alloc_frame(&mut self) -> Result<u64, Error> {
        if let Some(frame) = self.chunks.iter_mut().find_map(Chunk::take) {
            return Ok(frame);
        }
        if self.chunks.is_full() {
            return Err(Error::OutOfMemory);
        }
        let range = self.place_chunk().ok_or(Error::OutOfMemory)?;
        self.free.remove(range)?;
        let mut chunk = Chunk::new(range);
        let frame = chunk.take().ok_or(Error::OutOfMemory)?;
        self.chunks.push(chunk).map_err(|_| Error::OutOfMemory)?;
        Ok(frame)
    }

    /// Frees a frame allocated by [`alloc_frame`](Frames::alloc_frame).
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn free_frame(&mut self, pa: u64) -> Result<(), Error> {
        let holds = |chunk: &Chunk| chunk.range().start <= pa && pa < chunk.range().end;
        let index = self.chunks.iter().position(holds).ok_or(Error::NotAllocated)?;
        let chunk = &mut self.chunks[index];
        if !pa.is_multiple_of(PAGE_SIZE) || !chunk.give_back(pa) {
            return Err(Error::NotAllocated);
        }
        // If the list has no space for the chunk's range, the chunk is kept for later frames.
        if chunk.is_unused() && self.free.insert(chunk.range()).is_ok() {
            self.chunks.swap_remove(index);
        }
        Ok(())
    }

    /// Allocates `size` contiguous bytes, aligned to `align`. Their contents are arbitrary.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::InvalidRegion`] if `size` is 0, [`Error::OutOfMemory`],
    /// [`Error::TooManyRegions`].
    pub fn alloc_block(&mut self, size: u64, align: u64) -> Result<u64, Error> {
        self.alloc_block_near(size, align, &[])
    }

    /// [`alloc_block`](Frames::alloc_block), if possible within the regions `near`.
    ///
    /// # Errors
    /// Those of [`alloc_block`](Frames::alloc_block).
    pub fn alloc_block_near(&mut self, size: u64, align: u64, near: &[Region]) -> Result<u64, Error> {
        Region { base: 0, size }.check()?;
        if !align.is_power_of_two() {
            return Err(Error::Unaligned);
        }
        let align = align.max(PAGE_SIZE);
        let nearby = self.free.within(near).and_then(|free| place(&free, 0, size, align));
        let range = nearby.or_else(|| place(&self.free, 0, size, align)).ok_or(Error::OutOfMemory)?;
        self.free.remove(range)?;
        Ok(range.start)
    }

    /// Allocates `size` bytes of guest memory at `gpa`, placed so that the largest blocks map them. Their
    /// contents are arbitrary.
    ///
    /// Physical addresses are congruent to guest-physical ones modulo 1 GiB, else 2 MiB, else 4 KiB, but
    /// never more than useful: a range without a whole aligned GiB is placed modulo 2 MiB. Large blocks take
    /// precedence over a single contiguous range, and that over several pieces. Pieces are sorted by
    /// guest-physical address.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::InvalidRegion`] if the range is empty or wraps around,
    /// [`Error::OutOfMemory`] also if more than [`MAX_PIECES`] pieces would be needed,
    /// [`Error::TooManyRegions`].
    pub fn alloc_memory(&mut self, gpa: u64, size: u64) -> Result<Vec<Piece, MAX_PIECES>, Error> {
        self.alloc_memory_near(gpa, size, &[])
    }

    /// [`alloc_memory`](Frames::alloc_memory), if possible wholly within the regions `near`, even in smaller blocks
    /// than elsewhere.
    ///
    /// # Errors
    /// Those of [`alloc_memory`](Frames::alloc_memory).
    // Not inlined: its copies of the free list are most of a hypervisor's stack.
    #[inline(never)]
    pub fn alloc_memory_near(&mut self, gpa: u64, size: u64, near: &[Region]) -> Result<Vec<Piece, MAX_PIECES>, Error> {
        let wanted = Range::from(Region { base: gpa, size }.check()?);
        let nearby = self.free.within(near).and_then(|free| gather_largest_blocks(&free, wanted).ok());
        let pieces = match nearby {
            Some(pieces) => pieces,
            None => gather_largest_blocks(&self.free, wanted)?,
        };
        // On a copy: a failure half-way needs no undo.
        let mut free = self.free.clone();
        pieces.iter().try_for_each(|piece| free.remove(Range { start: piece.pa, end: piece.pa + piece.size }))?;
        self.free = free;
        Ok(pieces)
    }

    /// Frees memory, or any part of it, allocated by [`alloc_block`](Frames::alloc_block) or
    /// [`alloc_memory`](Frames::alloc_memory).
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::InvalidRegion`], [`Error::NotAllocated`], and
    /// [`Error::TooManyRegions`], which leaves the memory allocated.
    pub fn free_block(&mut self, pa: u64, size: u64) -> Result<(), Error> {
        let range = Range::from(Region { base: pa, size }.check()?);
        let in_chunk = |chunk: &Chunk| chunk.range().start < range.end && range.start < chunk.range().end;
        if !self.managed.contains(range) || self.free.overlaps(range) || self.chunks.iter().any(in_chunk) {
            return Err(Error::NotAllocated);
        }
        self.free.insert(range)
    }

    /// Allocates the block at `pa`, which has contents: those stay.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::InvalidRegion`] if `size` is 0, [`Error::OutOfMemory`] if a part of the block is not free memory,
    /// [`Error::TooManyRegions`].
    pub fn take_block(&mut self, pa: u64, size: u64) -> Result<(), Error> {
        let range = Range::from(Region { base: pa, size }.check()?);
        if !self.free.contains(range) {
            return Err(Error::OutOfMemory);
        }
        self.free.remove(range)
    }

    /// Whether all of a block is memory under management, and none of it is free.
    #[must_use]
    pub fn is_taken(&self, pa: u64, size: u64) -> bool {
        let is_taken = |range: Range| self.managed.contains(range) && !self.free.overlaps(range);
        Region { base: pa, size }.check().is_ok_and(|region| is_taken(region.into()))
    }

    /// [`free_block`](Frames::free_block), unless `most` separate regions or more are free: so frees of parts, in any order, leave room
    /// for others.
    ///
    /// # Errors
    /// Those of [`free_block`](Frames::free_block).
    pub fn free_part(&mut self, pa: u64, size: u64, most: usize) -> Result<(), Error> {
        // Before the block is free: it can't be taken out of a full list again.
        if self.free.iter().count() >= most {
            return Err(Error::TooManyRegions);
        }
        self.free_block(pa, size)
    }

    /// Selects the next chunk: a whole aligned one in the smallest region that has one, to preserve large
    /// regions; else what is left of the largest.
    fn place_chunk(&self) -> Option<Range> {
        place(&self.free, 0, CHUNK_SIZE, CHUNK_SIZE).or_else(|| {
            let largest = self.free.iter().max_by_key(|range| range.size())?;
            let end = largest.end.min(largest.start + CHUNK_SIZE);
            Some(Range { start: largest.start, end })
        })
    }
}

/// Best fit: the lowest place for `size` bytes congruent to `address` modulo `modulus`, in the smallest
/// suitable range.
fn place<const N: usize>(free: &RangeSet<N>, address: u64, size: u64, modulus: u64) -> Option<Range> {
    free.iter()
        .filter_map(|range| {
            let start = range.first_congruent(address, modulus)?;
            let end = start.checked_add(size).filter(|&end| end <= range.end)?;
            Some((range.size(), Range { start, end }))
        })
        .min_by_key(|&(size, place)| (size, place.start))
        .map(|(_, place)| place)
}

/// Selects memory in `free` for the guest-physical range `wanted`, in the largest blocks that are useful and available.
fn gather_largest_blocks<const N: usize>(free: &RangeSet<N>, wanted: Range) -> Result<Vec<Piece, MAX_PIECES>, Error> {
    let is_useful = |modulus: u64| wanted.first_congruent(0, modulus).is_some_and(|block| wanted.end - block >= modulus);
    let mut result = Err(Error::OutOfMemory);
    for modulus in BLOCK_SIZES.into_iter().filter(|&modulus| is_useful(modulus)) {
        result = gather(&mut free.clone(), wanted, modulus);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Takes memory for the guest-physical range `wanted` out of `free`: in one piece if possible, else
/// repeatedly the largest piece. All are congruent modulo `modulus`.
fn gather<const N: usize>(free: &mut RangeSet<N>, wanted: Range, modulus: u64) -> Result<Vec<Piece, MAX_PIECES>, Error> {
    let mut pieces = Vec::new();
    let mut gpa = wanted.start;
    while gpa < wanted.end {
        let left = wanted.end - gpa;
        let range = place(free, gpa, left, modulus).or_else(|| largest(free, gpa, modulus)).ok_or(Error::OutOfMemory)?;
        free.remove(range)?;
        let piece = Piece { gpa, pa: range.start, size: range.size() };
        pieces.push(piece).map_err(|_| Error::OutOfMemory)?;
        gpa += range.size();
    }
    Ok(pieces)
}

/// The largest place congruent to `gpa` modulo `modulus` whose end is a multiple of `modulus`, so that the
/// next piece starts on a block boundary.
fn largest<const N: usize>(free: &RangeSet<N>, gpa: u64, modulus: u64) -> Option<Range> {
    free.iter()
        .filter_map(|range| {
            let start = range.first_congruent(gpa, modulus)?;
            let end = range.end & !(modulus - 1);
            (start < end).then_some(Range { start, end })
        })
        .max_by_key(|place| (place.size(), Reverse(place.start)))
}
