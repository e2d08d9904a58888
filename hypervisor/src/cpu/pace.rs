//! Limits the time that deadlines of sleepers take from the vCPU that runs on a shared CPU.
//!
//! A wake-up does not preempt: on a shared CPU the woken vCPU waits for the end of the slice, unless another CPU is idle. But each
//! interrupt of the timer takes time from the vCPU that runs, and a VM can have as many sleepers as vCPUs.

/// Maximum number of sleepers woken at once, which takes some 30,000 instructions.
pub const AT_ONCE: usize = 64;
/// Pause after a timer interrupt for sleepers, in multiples of the time that its handling took.
const PAUSE: u64 = 32;

/// The time before which no deadline of a sleeper interrupts a CPU while vCPUs wait for it, in ticks of the counter. 0: none.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Pace(u64);

impl Pace {
    /// No pause.
    #[cfg_attr(target_os = "none", allow(dead_code, reason = "blocks of CPUs are zeroed memory"))]
    pub const fn new() -> Pace {
        Pace(0)
    }

    /// Notes that sleepers were woken from `began` to `ended`, in ticks; on a CPU that `is_shared` a pause follows. It is at most a time
    /// slice of `slice` ticks, because the end of each slice wakes sleepers as well.
    pub fn woke(&mut self, is_shared: bool, began: u64, ended: u64, slice: u64) {
        let pause = ended.saturating_sub(began).saturating_mul(PAUSE).min(slice);
        self.0 = if is_shared { ended.saturating_add(pause) } else { 0 };
    }

    /// Returns the time at which the timer is to expire for sleepers, the first of which has this deadline: not within the pause.
    #[inline(always)]
    pub fn apply(self, deadline: u64, is_shared: bool) -> u64 {
        if is_shared { deadline.max(self.0) } else { deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: u64 = 5_000_000;
    /// Ticks of an interrupt, and of each wake-up.
    const INTERRUPT: u64 = 1000;
    const WAKE: u64 = 450;

    /// Time that sleepers take from a slice, at the end of which they are woken anyway. Each sleeps until a time of its own.
    fn storm(sleepers: u64, is_shared: bool) -> u64 {
        let deadline = |sleeper: u64| sleeper * SLICE / sleepers;
        let mut pace = Pace::new();
        let (mut next, mut now, mut taken) = (0, 0, 0);
        while next < sleepers {
            now = pace.apply(deadline(next), is_shared).max(now);
            if now >= SLICE {
                break;
            }
            let expired = (next..sleepers).take(AT_ONCE).filter(|&sleeper| deadline(sleeper) <= now).count() as u64;
            assert!(expired != 0, "an interrupt in vain");
            next += expired;
            let took = INTERRUPT + expired * WAKE;
            pace.woke(is_shared, now, now + took, SLICE);
            now += took;
            taken += took;
        }
        taken
    }

    #[test]
    fn sleepers_take_a_bounded_part_of_a_slice() {
        for sleepers in [1, 2, 64] {
            assert_eq!(storm(sleepers, true), sleepers * (INTERRUPT + WAKE), "{sleepers} sleepers are woken in time");
        }
        for sleepers in [256, 2048, 32_768] {
            let (taken, most) = (storm(sleepers, true), SLICE / PAUSE + INTERRUPT + AT_ONCE as u64 * WAKE);
            assert!(taken <= most, "{sleepers} sleepers take {taken} of {SLICE}");
        }
        assert!(storm(2048, false) > SLICE / 2, "nobody waits for the CPU");
    }

    #[test]
    fn a_pause_ends_with_the_next_slice_at_the_latest() {
        let mut pace = Pace::new();
        pace.woke(true, 10, 12, SLICE);
        assert_eq!([pace.apply(11, false), pace.apply(11, true), pace.apply(100, true)], [11, 12 + 2 * PAUSE, 100]);
        // The emulator's host had stopped it.
        pace.woke(true, 10, 10 * SLICE, SLICE);
        assert_eq!(pace.apply(11, true), 11 * SLICE);
        pace.woke(false, 10, 12, SLICE);
        assert_eq!(pace.apply(13, true), 13);
    }
}
