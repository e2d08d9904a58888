//! Turns of a VM's vCPUs on a CPU that they share.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Length of the turns of a VM's vCPUs on a shared CPU, by default a time slice. A vCPU that sends an interrupt to
/// another one which waits for the same CPU may spin until that has run, for the rest of its slice. Its turn then
/// ends early, and the VM's next turns are a quarter longer than this one was, so that the receiver has enough time to
/// reply, and a vCPU that sends often takes no time from the others. Other VMs are unaffected: the scheduler divides
/// time among VMs whatever the length of turns.
pub struct Turns {
    /// Ticks of a turn.
    ticks: AtomicU64,
    /// Ticks of a turn that is not short.
    slice: u64,
    /// Ticks of the shortest turn, and of what remains of a turn that ends early.
    shortest: u64,
    /// Number of short turns left.
    short: AtomicU32,
}

impl Turns {
    /// Turns of a time slice. Both are in ticks.
    pub const fn new(slice: u64, shortest: u64) -> Turns {
        Turns { ticks: AtomicU64::new(slice), slice, shortest, short: AtomicU32::new(0) }
    }

    /// Ticks of the shortest turn.
    pub const fn shortest(&self) -> u64 {
        self.shortest
    }

    /// Length of a turn that starts now, in ticks.
    #[inline(always)]
    pub fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Whether turns are short now.
    #[inline(always)]
    pub fn are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) != 0
    }

    /// Shortens the next turns, two for each of `vcpus`, to a quarter more than `last` ticks; if turns are short already,
    /// to no less than half of their length, because some vCPUs may still wait for theirs. Returns the previous length in
    /// ticks.
    pub fn shorten(&self, last: u64, vcpus: usize) -> u64 {
        // CPUs that shorten or count concurrently may lose or gain a turn, which is harmless.
        let were_short = self.short.swap(2 * vcpus as u32, Ordering::Relaxed) != 0;
        let before = self.ticks();
        let least = if were_short { before / 2 } else { 0 };
        let next = last.saturating_add(last / 4).max(self.shortest).max(least).min(self.slice);
        self.ticks.store(next, Ordering::Relaxed);
        before
    }

    /// Counts a short turn that has ended.
    pub fn end(&self) {
        let left = self.short.load(Ordering::Relaxed).saturating_sub(1);
        self.short.store(left, Ordering::Relaxed);
        if left == 0 {
            self.ticks.store(self.slice, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_short_for_two_rounds() {
        const SLICE: u64 = 1 << 40;
        let turns = Turns::new(SLICE, 100);
        assert!(!turns.are_short() && turns.ticks() == SLICE);
        assert_eq!(turns.shorten(1000, 3), SLICE);
        for _ in 0..6 {
            assert!(turns.are_short() && turns.ticks() < SLICE);
            turns.end();
        }
        assert!(!turns.are_short() && turns.ticks() == SLICE);
        // Another interrupt lengthens the time.
        assert_eq!(turns.shorten(1000, 1), SLICE);
        turns.end();
        assert_eq!(turns.shorten(1000, 1), 1250);
        turns.end();
        assert!(turns.are_short());
        turns.end();
        assert!(!turns.are_short());
        // Of two CPUs that count concurrently, one may count too much.
        turns.end();
        assert_eq!(turns.ticks(), SLICE);
    }

    #[test]
    fn a_turn_is_at_least_half_as_long_as_the_one_before() {
        let turns = Turns::new(1 << 40, 100);
        let of = |last| {
            turns.shorten(last, 2);
            turns.ticks()
        };
        assert_eq!([4000, 100, 100, 9000, 4500, 1].map(of), [5000, 2500, 1250, 11_250, 5625, 2812]);
    }

    #[test]
    fn a_short_turn_has_limits() {
        let turns = Turns::new(200, 100);
        let of = |last| {
            turns.shorten(last, 1);
            turns.ticks()
        };
        assert_eq!([0, 60, 120, 1000, u64::MAX].map(of), [100, 100, 150, 200, 200]);
    }
}
