//! Stolen time: time for which a vCPU was ready while others had its CPU, reported to guests that enable it.

use core::sync::atomic::{AtomicU64, Ordering};

/// Stolen time of a vCPU, relative to when its guest enabled it.
pub struct Stolen {
    /// Ticks that the vCPU had waited when its guest enabled the report, or [`UNASKED`].
    before: AtomicU64,
}

const UNASKED: u64 = u64::MAX;

impl Stolen {
    /// Not enabled by the guest.
    pub const fn new() -> Stolen {
        Stolen { before: AtomicU64::new(UNASKED) }
    }

    /// Resets to not enabled: the VM was reset.
    pub fn reset(&self) {
        self.before.store(UNASKED, Ordering::Relaxed);
    }

    /// Enables the report for a vCPU that has waited for `waited` ticks so far.
    pub fn begin(&self, waited: u64) {
        self.before.store(waited.min(UNASKED - 1), Ordering::Relaxed);
    }

    /// Returns the stolen time in ticks of a vCPU that has waited for `waited` ticks; 0 if the report is not enabled.
    pub fn of(&self, waited: u64) -> Option<u64> {
        let before = self.before.load(Ordering::Relaxed);
        (before != UNASKED).then(|| waited.wrapping_sub(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_when_the_guest_asks() {
        let stolen = Stolen::new();
        assert_eq!(stolen.of(100), None);
        stolen.begin(100);
        assert_eq!(stolen.of(100), Some(0));
        assert_eq!(stolen.of(130), Some(30));
        // Again: it starts over.
        stolen.begin(140);
        assert_eq!(stolen.of(150), Some(10));
        stolen.reset();
        assert_eq!(stolen.of(200), None);
    }
}
