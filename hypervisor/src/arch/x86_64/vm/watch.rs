//! The time at which a vCPU must check a device other than its own APIC for an expiry.

use core::sync::atomic::{AtomicU64, Ordering};

/// A time in ticks of the counter, or none. Any CPU sets it.
pub struct Watch(AtomicU64);

/// There is none.
const NEVER: u64 = u64::MAX;

impl Watch {
    /// None.
    pub const fn new() -> Watch {
        Watch(AtomicU64::new(NEVER))
    }

    /// Whether the time has passed.
    #[inline(always)]
    pub fn is_over(&self, now: u64) -> bool {
        self.0.load(Ordering::Relaxed) <= now
    }

    /// The time, or none.
    #[inline(always)]
    pub fn next(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&at| at != NEVER)
    }

    /// Sets it. Returns whether it changed.
    pub fn set(&self, at: Option<u64>) -> bool {
        let at = at.unwrap_or(NEVER);
        self.0.swap(at, Ordering::Relaxed) != at
    }
}
