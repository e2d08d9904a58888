//! The ledger of one vCPU.

use crate::{DYNAMIC_BASE, DYNAMIC_ROWS, ROWS, Reason, Row, RowId, RowKey};

/// Maximum number of slots that [`Ledger::row_for`] probes. The guest chooses the keys, so the search must be
/// short for any keys.
const PROBES: usize = 16;

/// An empty slot in [`Ledger::keys`]. No encoded dynamic key is 0.
const FREE: u64 = 0;

/// The account of every exit of one vCPU.
///
/// Owned by the CPU on which the vCPU is loaded, and written without a lock. A reader on another CPU sees
/// each number whole, but no consistent snapshot.
///
/// All bytes zero is a valid value, but not an empty ledger (the minimum would stay 0): zeroed memory needs a
/// [`reset`](Self::reset).
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Ledger {
    /// Exits taken: incremented by the vector, however the exit is handled.
    pub taken: u64,
    // Aligns the rows to a cache line.
    reserved: [u64; 7],
    /// The rows, in the order of [`RowId`].
    pub rows: [Row; ROWS],
    /// The keys of the dynamic rows: an encoded [`RowKey::Dynamic`], or [`FREE`]. A hash table with open
    /// addressing, without removal.
    keys: [u64; DYNAMIC_ROWS],
}

/// A row with at least one counted exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The row's number in its ledger.
    pub id: RowId,
    /// The row's meaning.
    pub key: RowKey,
    /// The row's counters.
    pub row: Row,
}

impl Ledger {
    /// An empty ledger.
    pub const fn new() -> Self {
        Self { taken: 0, reserved: [0; 7], rows: [Row::EMPTY; ROWS], keys: [FREE; DYNAMIC_ROWS] }
    }

    /// Empties the ledger in place: it is too large to move.
    pub fn reset(&mut self) {
        self.taken = 0;
        self.rows.fill(Row::EMPTY);
        self.keys.fill(FREE);
    }

    /// Counts an exit as taken, like the vector.
    #[inline]
    pub const fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Accounts an exit that took `ticks` to its row, like the return path to the guest.
    ///
    /// For exits that don't return: a vCPU that powers itself off, or is stopped while the exit is handled.
    #[inline]
    pub const fn account(&mut self, row: RowId, ticks: u64) {
        self.rows[row.index()].account(ticks);
    }

    /// The row with this number.
    #[inline]
    pub const fn row(&self, id: RowId) -> &Row {
        &self.rows[id.index()]
    }

    /// The dynamic row of a sub-reason without a static one: the same row for the same `reason` and `key`. If
    /// the table is full, [`Reason::other`].
    ///
    /// Bounded, but not for the hot path: probes up to 16 slots.
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

    /// [`row_for`](Self::row_for), for frequent exits: one comparison if the row is in its first slot, as most are.
    #[inline(always)]
    pub fn frequent_row_for(&mut self, reason: Reason, key: u32) -> RowId {
        let wanted = RowKey::Dynamic { reason, key }.encode();
        let place = hash(wanted) & (DYNAMIC_ROWS - 1);
        if self.keys[place] == wanted { RowId::masked(DYNAMIC_BASE + place) } else { self.row_for(reason, key) }
    }

    /// The key of a row; `None` for an unassigned dynamic row.
    pub fn key(&self, id: RowId) -> Option<RowKey> {
        match id.index().checked_sub(DYNAMIC_BASE) {
            None => Some(RowKey::Static(id)),
            Some(place) => self.keys.get(place).copied().and_then(RowKey::decode_dynamic),
        }
    }

    /// The rows with at least one counted exit, by number.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.rows.iter().enumerate().filter(|(_, row)| !row.is_empty()).filter_map(|(index, row)| {
            let id = RowId::masked(index);
            Some(Entry { id, key: self.key(id)?, row: *row })
        })
    }

    /// The sum over all rows: number of exits, total ticks outside the guest, minimum and maximum.
    pub fn sum(&self) -> Row {
        let mut sum = Row::EMPTY;
        for row in &self.rows {
            sum.merge(row);
        }
        sum
    }

    /// Number of counted exits over all rows.
    pub fn counted(&self) -> u64 {
        self.sum().count
    }

    /// Exits taken but not counted. Zero, or one while an exit is being handled; otherwise an exit was not
    /// accounted, or was accounted twice (negative).
    pub fn difference(&self) -> i64 {
        self.taken.wrapping_sub(self.counted()) as i64
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

/// The first slot to probe for an encoded key.
const fn hash(code: u64) -> usize {
    // Fibonacci hashing: spreads keys that differ in few bits, such as neighbouring registers.
    let spread = code.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread >> (u64::BITS - DYNAMIC_ROWS.ilog2())) as usize
}
