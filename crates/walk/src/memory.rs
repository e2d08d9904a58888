//! What a walk asks of guest memory.

/// Guest-physical memory, as the guest's paging structures and code are read from it.
///
/// Other virtual processors and devices may write while it is read; each call is one access and needs
/// no more atomicity than the processor's own.
pub trait GuestMemory {
    /// Where eight bytes are, found once and for as long as there is the memory.
    type Place: Copy;

    /// A place at which there are always zeros.
    const ZEROS: Self::Place;

    /// The place of the eight bytes at `address`, which lie within one 4 KiB page. None if there is no memory.
    fn place(&self, address: u64) -> Option<Self::Place>;

    /// Eight bytes, little-endian, as [`read_u64`](Self::read_u64) reads them.
    fn look(&self, place: Self::Place) -> u64;

    /// Eight bytes, little-endian, at `address`, which lie within one 4 KiB page; at an aligned address
    /// they are read at once. None if there is no memory.
    fn read_u64(&self, address: u64) -> Option<u64>;

    /// Four bytes, as [`read_u64`](Self::read_u64).
    fn read_u32(&self, address: u64) -> Option<u32>;

    /// Atomically puts `new` for `old` at the aligned `address`. False if something else was there, or
    /// there is no memory.
    fn replace_u64(&self, address: u64, old: u64, new: u64) -> bool;

    /// As [`replace_u64`](Self::replace_u64), for four bytes.
    fn replace_u32(&self, address: u64, old: u32, new: u32) -> bool;
}
