//! The interface to guest memory.

/// Guest-physical memory, from which paging structures and code are read.
///
/// Other vCPUs and devices may write concurrently. Each call is one access and needs no more atomicity than the processor's own.
pub trait GuestMemory {
    /// The resolved location of eight bytes, valid for as long as the memory exists.
    type Place: Copy;

    /// A place that always reads as zero.
    const ZEROS: Self::Place;

    /// Resolves the eight bytes at `address`, which lie within one 4 KiB page. Returns `None` if they are not RAM.
    fn place(&self, address: u64) -> Option<Self::Place>;

    /// Reads eight bytes at a resolved place, as [`read_u64`](Self::read_u64).
    fn look(&self, place: Self::Place) -> u64;

    /// Reads eight bytes, little-endian, at `address`, which lie within one 4 KiB page; atomically if the address is a multiple of 8.
    /// Returns `None` if they are not RAM.
    fn read_u64(&self, address: u64) -> Option<u64>;

    /// Reads four bytes, as [`read_u64`](Self::read_u64).
    fn read_u32(&self, address: u64) -> Option<u32>;

    /// Atomically replaces `old` with `new` at `address`, a multiple of 8. Returns false if memory has another value, or is not RAM.
    fn replace_u64(&self, address: u64, old: u64, new: u64) -> bool;

    /// Replaces four bytes at a multiple of 4, as [`replace_u64`](Self::replace_u64).
    fn replace_u32(&self, address: u64, old: u32, new: u32) -> bool;
}
