//! Rows of the ledger, and their identifiers.

/// Number of rows of a ledger. A power of two, so that masking bounds a row number.
pub const ROWS: usize = 1024;
/// Maximum number of reasons: each has one row for exits without a sub-reason's row.
pub const REASONS: usize = 32;
/// Number of dynamic rows, assigned by [`Ledger::row_for`](crate::Ledger::row_for). A power of two.
pub const DYNAMIC_ROWS: usize = 256;
/// The first dynamic row.
pub const DYNAMIC_BASE: usize = ROWS - DYNAMIC_ROWS;

/// The reason for an exit: `HVC`, `MMIO`, `IRQ`.
///
/// Numbers are specific to an architecture: see [`aarch64::reason`](crate::aarch64::reason).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reason(u8);

impl Reason {
    /// The reason with this number.
    ///
    /// # Panics
    /// If the number isn't below [`REASONS`]. Called in constants only, where a panic is a compile-time
    /// error.
    pub(crate) const fn new(number: u8) -> Self {
        assert!((number as usize) < REASONS);
        Self(number)
    }

    /// The reason with this number, or `None` if it isn't below [`REASONS`].
    pub const fn from_raw(number: u8) -> Option<Self> {
        if (number as usize) < REASONS { Some(Self(number)) } else { None }
    }

    /// The reason's number.
    pub const fn raw(self) -> u8 {
        self.0
    }

    /// The row of this reason's exits that have no row of their own.
    #[inline]
    pub const fn other(self) -> RowId {
        RowId(self.0 as u16)
    }
}

/// The number of a row; handlers return it to account their exit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct RowId(u16);

impl RowId {
    /// The row with this number modulo [`ROWS`].
    #[inline]
    pub const fn masked(number: usize) -> Self {
        Self((number & (ROWS - 1)) as u16)
    }

    /// The row with this number, or `None` if it isn't below [`ROWS`].
    pub const fn from_raw(number: u16) -> Option<Self> {
        if (number as usize) < ROWS { Some(Self(number)) } else { None }
    }

    /// The row's number, for the exit path's assembly.
    #[inline]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// The row's index in [`Ledger::rows`](crate::Ledger::rows).
    #[inline]
    pub const fn index(self) -> usize {
        // In range by construction; the mask makes that visible to the compiler.
        self.0 as usize & (ROWS - 1)
    }

    /// Whether this is a dynamic row: its meaning is specific to a ledger.
    pub const fn is_dynamic(self) -> bool {
        self.index() >= DYNAMIC_BASE
    }
}

/// The meaning of a row, independent of the ledger.
///
/// A dynamic row's number is meaningful only with its ledger's keys, so the key is sent to the operator and
/// used to merge rows of several vCPUs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RowKey {
    /// A row with the same meaning in every ledger.
    Static(RowId),
    /// A dynamic row.
    Dynamic {
        /// The reason that the key belongs to.
        reason: Reason,
        /// The sub-reason, encoded specifically for the reason.
        key: u32,
    },
}

/// Set in the encoding of a [`RowKey::Dynamic`]; no higher bit is set.
const DYNAMIC: u64 = 1 << 40;

impl RowKey {
    /// Encodes the key in one number of at most 41 bits: small for a static row.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Static(id) => id.0 as u64,
            Self::Dynamic { reason, key } => DYNAMIC | (reason.0 as u64) << 32 | key as u64,
        }
    }

    /// Decodes a number made by [`encode`](Self::encode); `None` for all others.
    pub const fn decode(code: u64) -> Option<Self> {
        if code < DYNAMIC_BASE as u64 {
            return Some(Self::Static(RowId(code as u16)));
        }
        Self::decode_dynamic(code)
    }

    /// [`decode`](Self::decode), for the number of a [`RowKey::Dynamic`] only.
    pub(crate) const fn decode_dynamic(code: u64) -> Option<Self> {
        if code & !(DYNAMIC - 1) != DYNAMIC {
            return None;
        }
        match Reason::from_raw((code >> 32) as u8) {
            Some(reason) => Some(Self::Dynamic { reason, key: code as u32 }),
            None => None,
        }
    }
}

/// The accumulated cost of one kind of exit. Times are ticks of the counter that the exit path reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Row {
    /// Number of exits.
    pub count: u64,
    /// Total duration.
    pub ticks: u64,
    /// Minimum duration; `u64::MAX` without exits.
    pub min: u64,
    /// Maximum duration; 0 without exits.
    pub max: u64,
}

impl Row {
    /// A row without exits.
    pub const EMPTY: Self = Self { count: 0, ticks: 0, min: u64::MAX, max: 0 };

    /// Accounts one exit that took `ticks`. Sums wrap, at 1 GHz after more than 500 years.
    #[inline]
    pub const fn account(&mut self, ticks: u64) {
        self.count = self.count.wrapping_add(1);
        self.ticks = self.ticks.wrapping_add(ticks);
        if ticks < self.min {
            self.min = ticks;
        }
        if ticks > self.max {
            self.max = ticks;
        }
    }

    /// Merges the exits of another row into this one.
    pub const fn merge(&mut self, other: &Self) {
        self.count = self.count.wrapping_add(other.count);
        self.ticks = self.ticks.wrapping_add(other.ticks);
        if other.min < self.min {
            self.min = other.min;
        }
        if other.max > self.max {
            self.max = other.max;
        }
    }

    /// Whether no exit has been counted.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The mean duration of an exit in ticks, rounded down; 0 without exits.
    pub const fn mean(&self) -> u64 {
        match self.ticks.checked_div(self.count) {
            Some(mean) => mean,
            None => 0,
        }
    }
}

impl Default for Row {
    fn default() -> Self {
        Self::EMPTY
    }
}
