//! Shadow fills that race with invalidations.
//!
//! A vCPU of L1 walks L1's tables without a lock, then adds the mapping under the pool's lock. In between,
//! another vCPU may change an entry and invalidate it: the invalidation finds nothing in the shadow, and the
//! mapping added afterwards stays stale. So invalidations are counted. The filler observes the count before
//! its walk and compares it under the lock; if it differs, L2 faults again.
//!
//! - An invalidation increments the count and then unmaps, both under the lock. If it precedes the filler's
//!   critical section, the filler sees the new count; if it follows, it unmaps the new mapping.
//! - A filler that observes the new count walks after it. The architecture requires L1 to order its table
//!   change before its maintenance (Arm ARM, "TLB maintenance instructions": `DSB`), so that walk sees the
//!   change.
//!
//! `tests/fill_race.rs` tries all orders of the steps, `fuzz/tests/interleavings/fills.rs` those of the memory accesses. Both
//! find the race if the comparison is omitted.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// The number of invalidations of one VM's shadows.
#[derive(Debug, Default)]
pub struct Invalidations(AtomicU64);

/// The count observed before a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed(u64);

impl Invalidations {
    /// No invalidation yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Observes the count before a walk of L1's tables. The walk's reads are ordered after it.
    #[inline]
    #[must_use]
    pub fn observe(&self) -> Observed {
        Observed(self.0.load(Acquire))
    }

    /// Records an invalidation, before anything is unmapped. The caller holds the pool's lock.
    pub fn record(&self) {
        self.0.fetch_add(1, AcqRel);
    }

    /// Whether the result of a walk after `observed` may be mapped. The caller holds the pool's lock.
    #[must_use]
    pub fn is_current(&self, observed: Observed) -> bool {
        // The lock orders this with `record`.
        self.0.load(Relaxed) == observed.0
    }
}
