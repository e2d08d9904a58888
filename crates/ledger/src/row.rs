//! One row of the ledger, and the ways to say which.

/// Number of rows of a ledger. A power of two, so that masking a row's number is enough.
pub const ROWS: usize = 1024;
/// Room for reasons: each has one row for what has no sub-reason of its own.
pub const REASONS: usize = 32;
/// Number of dynamic rows, given out by [`Ledger::row_for`](crate::Ledger::row_for). A power of
/// two.
pub const DYNAMIC_ROWS: usize = 256;
/// The first dynamic row.
pub const DYNAMIC_BASE: usize = ROWS - DYNAMIC_ROWS;

/// Why a vCPU left the guest, at the coarsest: `HVC`, `MMIO`, `IRQ`.
///
/// The number is the architecture's own: see [`aarch64::reason`](crate::aarch64::reason).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reason(u8);

impl Reason {
    /// The reason with this number.
    ///
    /// # Panics
    /// If the number isn't below [`REASONS`]. It is called in constants only, where that is an
    /// error of compilation.
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

    /// The row of those exits of this reason that have no row of their own.
    #[inline]
    pub const fn other(self) -> RowId {
        RowId(self.0 as u16)
    }
}

/// The number of a row: what a handler returns to say how its exit is to be counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct RowId(u16);

impl RowId {
    /// The row with this number; what lies above the last row is cut off.
    #[inline]
    pub const fn masked(number: usize) -> Self {
        Self((number & (ROWS - 1)) as u16)
    }

    /// The row with this number, or `None` if it isn't below [`ROWS`].
    pub const fn from_raw(number: u16) -> Option<Self> {
        if (number as usize) < ROWS { Some(Self(number)) } else { None }
    }

    /// The row's number, as the exit path's assembly takes it.
    #[inline]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// The row's place in [`Ledger::rows`](crate::Ledger::rows).
    #[inline]
    pub const fn index(self) -> usize {
        // Known to be in range; the mask lets the compiler know, too.
        self.0 as usize & (ROWS - 1)
    }

    /// Whether this is a dynamic row: what it stands for differs from ledger to ledger.
    pub const fn is_dynamic(self) -> bool {
        self.index() >= DYNAMIC_BASE
    }
}

/// What a row stands for, independent of the ledger that it was found in.
///
/// A dynamic row's number means something only beside its ledger's keys, so it is a key that is
/// sent to the operator and that rows of several vCPUs are added up by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RowKey {
    /// A row that means the same in every ledger.
    Static(RowId),
    /// A dynamic row.
    Dynamic {
        /// The reason that the key belongs to.
        reason: Reason,
        /// The sub-reason; what it encodes depends on the reason.
        key: u32,
    },
}

/// Set in the number of a [`RowKey::Dynamic`]; above it, nothing.
const DYNAMIC: u64 = 1 << 40;

impl RowKey {
    /// The key as one number, never above 41 bits: small for a static row.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Static(id) => id.0 as u64,
            Self::Dynamic { reason, key } => DYNAMIC | (reason.0 as u64) << 32 | key as u64,
        }
    }

    /// The key that [`encode`](Self::encode) made into this number, or `None` if none has it.
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

/// What one kind of exit has cost so far. Times are ticks of the counter that the exit path reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Row {
    /// How many exits.
    pub count: u64,
    /// How long they took together.
    pub ticks: u64,
    /// The shortest; `u64::MAX` while there was none.
    pub min: u64,
    /// The longest; 0 while there was none.
    pub max: u64,
}

impl Row {
    /// A row without an exit.
    pub const EMPTY: Self = Self { count: 0, ticks: 0, min: u64::MAX, max: 0 };

    /// Adds one exit that took `ticks`. Sums wrap: at 1 GHz, after more than 500 years.
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

    /// Adds the exits of another row to this one.
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

    /// Whether no exit has been counted here.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The mean length of an exit in ticks, rounded down; 0 if there was none.
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
