//! Turns of a VM's vCPUs on a CPU that they share.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How long a vCPU of a VM runs until the next one does: a time slice. If one of them sends an interrupt to another one that waits for the
/// same CPU, it may spin until that has run, which would take the rest of its slice. The next turns of the VM are short then, so that each of
/// its vCPUs runs soon. Other VMs see no difference: the scheduler divides time among VMs, however long their turns are.
pub struct Turns {
    /// Ticks of a turn.
    ticks: AtomicU64,
    /// Ticks of a turn that is not short.
    slice: u64,
    /// Short turns left.
    short: AtomicU32,
}

impl Turns {
    /// Turns of a time slice, in ticks.
    pub const fn new(slice: u64) -> Turns {
        Turns { ticks: AtomicU64::new(slice), slice, short: AtomicU32::new(0) }
    }

    /// Ticks of a turn that begins now.
    #[inline(always)]
    pub fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Whether turns are short now.
    #[inline(always)]
    pub fn are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) != 0
    }

    /// Makes the next turns as short as `short` ticks, two for each of `vcpus`. False if they were short before.
    pub fn shorten(&self, short: u64, vcpus: usize) -> bool {
        self.ticks.store(short.clamp(1, self.slice), Ordering::Relaxed);
        // CPUs that shorten or count at the same time may lose a turn, or gain one.
        self.short.swap(2 * vcpus as u32, Ordering::Relaxed) == 0
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
        let turns = Turns::new(SLICE);
        assert!(!turns.are_short() && turns.ticks() == SLICE);
        assert!(turns.shorten(1000, 3));
        for _ in 0..6 {
            assert!(turns.are_short() && turns.ticks() < SLICE);
            turns.end();
        }
        assert!(!turns.are_short() && turns.ticks() == SLICE);
        // Another interrupt lengthens the time, and asks for no second look at the slice.
        assert!(turns.shorten(1000, 1));
        turns.end();
        assert!(!turns.shorten(1000, 1));
        turns.end();
        assert!(turns.are_short());
        turns.end();
        assert!(!turns.are_short());
        // Of two CPUs that count at once, one may count too much.
        turns.end();
        assert_eq!(turns.ticks(), SLICE);
    }

    #[test]
    fn a_short_turn_is_no_longer_than_a_slice() {
        let turns = Turns::new(1);
        turns.shorten(1000, 1);
        assert_eq!(turns.ticks(), 1);
    }
}
