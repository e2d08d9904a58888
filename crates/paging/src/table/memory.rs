//! The walker's access to table memory.

use super::Level;
use core::convert::Infallible;

/// Reads of translation tables.
///
/// The hypervisor's own tables are always readable ([`Error`](TableRead::Error) is [`Infallible`]); tables
/// made by a guest may point outside the guest's memory, and such a read can fail.
pub trait TableRead {
    /// Failure of a read.
    type Error;

    /// Reads entry `index` of the table at physical address `table`.
    ///
    /// `table` is a multiple of 4 KiB. `index` is below 512, or below 8192 in a root made of
    /// concatenated tables. The read is single-copy atomic.
    fn read(&self, table: u64, index: usize) -> Result<u64, Self::Error>;
}

/// Memory of the walker's own tables, with allocation of new ones.
pub trait TableMemory: TableRead<Error = Infallible> {
    /// Writes entry `index` of the table at physical address `table`.
    ///
    /// The write is single-copy atomic with release semantics (`STLR`), because it may link a new table: a
    /// table walk that observes it must also observe all earlier writes. See "Ordering and observability of
    /// translation table walks" in the manual.
    fn write(&mut self, table: u64, index: usize, descriptor: u64);

    /// Allocates a zeroed 4 KiB frame, aligned to 4 KiB and below 2^48. `None` if no frame is free.
    fn allocate(&mut self) -> Option<u64>;

    /// Frees a frame returned by [`allocate`](TableMemory::allocate). No TLB and no table walk refers to it
    /// any more; its contents are arbitrary.
    fn free(&mut self, table: u64);

    /// Takes over an unlinked table of `level` with all tables below it, to free them later and piecewise.
    /// Returns `false` (the default) to have them walked and freed immediately.
    ///
    /// Stale TLB entries and table walks may refer to them until the operation has completed its maintenance;
    /// until then it no longer calls [`allocate`](TableMemory::allocate).
    fn defer(&mut self, table: u64, level: Level) -> bool {
        let _ = (table, level);
        false
    }
}
