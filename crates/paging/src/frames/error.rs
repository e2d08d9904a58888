//! Failures of the frame allocator.

/// Failure of an allocation or free, which leaves the allocator unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// A region ends beyond the last address, or is empty where it may not be.
    InvalidRegion,
    /// An address or size is not a multiple of 4 KiB, or an alignment not a power of two.
    Unaligned,
    /// Not enough free memory, or too fragmented.
    OutOfMemory,
    /// The freed memory is not allocated, or was allocated by another function.
    NotAllocated,
    /// The fixed-size region lists are full.
    TooManyRegions,
}
