//! How the walker reaches the memory that tables are in.

use super::Level;
use core::convert::Infallible;

/// Reads of translation tables.
///
/// The hypervisor's own tables are always readable ([`Error`](TableRead::Error) is [`Infallible`]);
/// tables that a guest made may point outside the guest's memory, and such a read can fail.
pub trait TableRead {
    /// Why a read failed.
    type Error;

    /// Reads entry `index` of the table at physical address `table`.
    ///
    /// `table` is a multiple of 4 KiB. `index` is below 512, or below 8192 in a root made of
    /// concatenated tables. The read is single-copy atomic.
    fn read(&self, table: u64, index: usize) -> Result<u64, Self::Error>;
}

/// Memory that holds tables which the walker owns, and from which it makes new ones.
pub trait TableMemory: TableRead<Error = Infallible> {
    /// Writes entry `index` of the table at physical address `table`.
    ///
    /// The write is single-copy atomic and has release semantics (`STLR`): a table walk that
    /// sees it must also see every write before it, for it may be what links a new table. See
    /// "Ordering and observability of translation table walks" in the manual.
    fn write(&mut self, table: u64, index: usize, descriptor: u64);

    /// Takes a zeroed 4 KiB frame, aligned to 4 KiB and below 2^48, or `None` when there is none.
    fn allocate(&mut self) -> Option<u64>;

    /// Gives back a frame that [`allocate`](TableMemory::allocate) returned. No TLB and no table
    /// walk refers to it any more; its contents are arbitrary.
    fn free(&mut self, table: u64);

    /// Takes a table of `level` that nothing leads to any more, with all tables below it, to free them later and in pieces. Returns
    /// `false`, as by default, to have them looked through and freed at once.
    ///
    /// Stale TLB entries and table walks may refer to them until the operation has completed its maintenance; it calls
    /// [`allocate`](TableMemory::allocate) no more before that.
    fn defer(&mut self, table: u64, level: Level) -> bool {
        let _ = (table, level);
        false
    }
}
