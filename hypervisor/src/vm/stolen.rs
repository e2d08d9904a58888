//! Stolen time: how long a vCPU was ready, and others had its CPU. A guest that asks for it counts it as nobody's own time.

use core::sync::atomic::{AtomicU64, Ordering};

/// The stolen time of a vCPU, as its guest knows it.
pub struct Stolen {
    /// Ticks that it had waited when its guest asked first, or [`UNASKED`].
    before: AtomicU64,
}

const UNASKED: u64 = u64::MAX;

impl Stolen {
    /// Of a vCPU whose guest has not asked.
    pub const fn new() -> Stolen {
        Stolen { before: AtomicU64::new(UNASKED) }
    }

    /// The VM is reset: its next guest has not asked.
    pub fn reset(&self) {
        self.before.store(UNASKED, Ordering::Relaxed);
    }

    /// The guest asks from now on; the vCPU has waited for so many ticks.
    pub fn begin(&self, waited: u64) {
        self.before.store(waited, Ordering::Relaxed);
    }

    /// The stolen time of a vCPU that has waited for so many ticks, in ticks; nothing if its guest did not ask.
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
