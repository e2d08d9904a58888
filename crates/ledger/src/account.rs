//! The ledger of one vCPU.

use crate::{DYNAMIC_BASE, DYNAMIC_ROWS, ROWS, Reason, Row, RowId, RowKey};

/// How many places [`Ledger::row_for`] looks at before it gives up. A guest chooses the keys, so
/// the search must be short whatever they are.
const PROBES: usize = 16;

/// In [`Ledger::keys`]: nothing yet. No encoded dynamic key is 0.
const FREE: u64 = 0;

/// The account of every exit of one vCPU.
///
/// Belongs to the CPU that the vCPU is loaded on: it is written without a lock. A reader elsewhere
/// sees each number whole, but not all of them from one moment.
///
/// All bytes zero is a valid value, but not an empty ledger (the shortest exit would be 0 for
/// good): memory from an allocator of zeroed frames is made one by [`reset`](Self::reset).
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Ledger {
    /// Exits taken: counted by the vector, whatever becomes of the exit.
    pub taken: u64,
    // The rows start at a cache line of their own.
    reserved: [u64; 7],
    /// The rows, in the order of [`RowId`].
    pub rows: [Row; ROWS],
    /// What each dynamic row stands for: an encoded [`RowKey::Dynamic`], or [`FREE`]. A hash table
    /// with open addressing, without removal.
    keys: [u64; DYNAMIC_ROWS],
}

/// A row that has counted at least one exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The row's number in its ledger.
    pub id: RowId,
    /// What the row stands for.
    pub key: RowKey,
    /// What it has counted.
    pub row: Row,
}

impl Ledger {
    /// An empty ledger.
    pub const fn new() -> Self {
        Self { taken: 0, reserved: [0; 7], rows: [Row::EMPTY; ROWS], keys: [FREE; DYNAMIC_ROWS] }
    }

    /// Empties the ledger where it lies: it is too large to be moved about.
    pub fn reset(&mut self) {
        self.taken = 0;
        self.rows.fill(Row::EMPTY);
        self.keys.fill(FREE);
    }

    /// Counts an exit as taken, as the vector does.
    #[inline]
    pub const fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Adds an exit that took `ticks` to its row, as the way back into the guest does.
    ///
    /// For exits that do not go back: a vCPU that powers itself off, or is stopped while the exit
    /// is being handled.
    #[inline]
    pub const fn account(&mut self, row: RowId, ticks: u64) {
        self.rows[row.index()].account(ticks);
    }

    /// The row with this number.
    #[inline]
    pub const fn row(&self, id: RowId) -> &Row {
        &self.rows[id.index()]
    }

    /// The row for a sub-reason that has no static one. It is the same row each time for the same
    /// `reason` and `key`; if there is no room left for a new one, the row is
    /// [`Reason::other`].
    ///
    /// Bounded in time, but not for the hot path: a search of up to 16 places.
    pub fn row_for(&mut self, reason: Reason, key: u32) -> RowId {
        let wanted = RowKey::Dynamic { reason, key }.encode();
        let start = hash(wanted);
        for probe in 0..PROBES {
            let place = start.wrapping_add(probe) & (DYNAMIC_ROWS - 1);
            let found = &mut self.keys[place];
            if *found == FREE {
                *found = wanted;
            }
            if *found == wanted {
                return RowId::masked(DYNAMIC_BASE + place);
            }
        }
        reason.other()
    }

    /// What a row of this ledger stands for; `None` for a dynamic row that has not been given out.
    pub fn key(&self, id: RowId) -> Option<RowKey> {
        match id.index().checked_sub(DYNAMIC_BASE) {
            None => Some(RowKey::Static(id)),
            Some(place) => self.keys.get(place).copied().and_then(RowKey::decode_dynamic),
        }
    }

    /// The rows that have counted an exit, in the order of their numbers.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.rows.iter().enumerate().filter(|(_, row)| !row.is_empty()).filter_map(|(index, row)| {
            let id = RowId::masked(index);
            Some(Entry { id, key: self.key(id)?, row: *row })
        })
    }

    /// All rows added up: how many exits were counted, how long the vCPU was outside its guest, and
    /// the shortest and the longest exit.
    pub fn sum(&self) -> Row {
        let mut sum = Row::EMPTY;
        for row in &self.rows {
            sum.merge(row);
        }
        sum
    }

    /// How many exits were counted, over all rows.
    pub fn counted(&self) -> u64 {
        self.sum().count
    }

    /// Exits taken but not counted. Zero, or one while an exit is being handled; anything else
    /// means that an exit went by unaccounted, or was accounted twice (below zero).
    pub fn difference(&self) -> i64 {
        self.taken.wrapping_sub(self.counted()) as i64
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

/// Where the search for an encoded key starts.
const fn hash(code: u64) -> usize {
    // Fibonacci hashing: keys that differ in few bits, such as neighbouring registers, come apart.
    let spread = code.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread >> (u64::BITS - DYNAMIC_ROWS.ilog2())) as usize
}
