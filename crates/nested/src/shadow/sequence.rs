//! Fills that race with invalidations.
//!
//! A vCPU of L1 walks L1's tables without a lock, then maps what it found under the pool's lock. Another one may change an entry and
//! invalidate it in between: its invalidation finds nothing in the shadow, and what is mapped afterwards is stale for good. So
//! invalidations are counted. The filler observes the count before its walk and compares it under the lock; if it differs, L2 faults again.
//!
//! - The invalidation counts first and unmaps then, both under the lock. Either it comes before the filler's critical section, which sees the
//!   count, or after it, and unmaps what was mapped.
//! - A filler that observes the new count walks after it. L1 orders its change of the table before its maintenance, as the architecture
//!   asks (Arm ARM, "TLB maintenance instructions": `DSB`), so that walk finds the change.
//!
//! `tests/fill_race.rs` tries all orders of the steps, and finds the race where the comparison is left out.

#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

/// How many invalidations of one VM's shadows there have been.
#[derive(Debug, Default)]
pub struct Invalidations(AtomicU64);

/// The count before a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed(u64);

impl Invalidations {
    /// None.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The count, before a walk of L1's tables. What the walk reads is no older.
    #[inline]
    #[must_use]
    pub fn observe(&self) -> Observed {
        Observed(self.0.load(Acquire))
    }

    /// Counts an invalidation, before anything is unmapped. The caller holds the pool's lock.
    pub fn record(&self) {
        self.0.fetch_add(1, AcqRel);
    }

    /// Whether what was walked after `observed` may be mapped. The caller holds the pool's lock.
    #[must_use]
    pub fn is_current(&self, observed: Observed) -> bool {
        // The lock orders this with `record`.
        self.0.load(Relaxed) == observed.0
    }
}
