//! Bounded waits for other CPUs.

/// The least number of looks before a wait ends, however the clock jumps.
const LOOKS: u64 = 16;

/// Waits until `is_done` returns true, for at most `ticks` of the clock `now`. Returns whether it did.
///
/// A clock that jumps back lengthens the wait by at most the jump. One that jumps forward, as under a hypervisor or an emulator that was
/// not scheduled, counts as [`LOOKS`]th of the wait: the other CPU stood still as well.
pub fn wait_for(mut is_done: impl FnMut() -> bool, mut now: impl FnMut() -> u64, ticks: u64) -> bool {
    let mut last = now();
    let mut left = ticks;
    loop {
        if is_done() {
            return true;
        }
        let at = now();
        // Time since the previous reading: none if the clock jumped back.
        let passed = at.saturating_sub(last).min(ticks / LOOKS);
        if passed > left {
            return is_done();
        }
        (last, left) = (at, left - passed);
        core::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that reads these times, then advances in steps of 10.
    fn clock<const N: usize>(times: [u64; N]) -> impl FnMut() -> u64 {
        let mut times = times.into_iter();
        let mut last = 0u64;
        move || {
            last = times.next().unwrap_or_else(|| last.wrapping_add(10));
            last
        }
    }

    /// True at the `n`th call.
    fn done_at(n: u32) -> impl FnMut() -> bool {
        let mut looks = 0;
        move || {
            looks += 1;
            looks >= n
        }
    }

    #[test]
    fn it_ends_when_done_or_when_time_is_up() {
        assert!(wait_for(done_at(1), clock([]), 0));
        assert!(wait_for(done_at(9), clock([]), 100));
        assert!(!wait_for(|| false, clock([]), 100));
        assert!(!wait_for(done_at(1000), clock([]), 100));
    }

    #[test]
    fn it_looks_once_more_after_the_time() {
        // The clock stood still for this CPU, as under another hypervisor, while the other CPU arrived.
        assert!(wait_for(done_at(2), clock([5, 1_000_000]), 100));
    }

    #[test]
    fn a_clock_that_jumps_forward_does_not_end_it() {
        assert!(wait_for(done_at(5), clock([5, 1_000_000, 2_000_000]), 100));
        assert!(!wait_for(|| false, clock([5, 1_000_000]), 100));
        let mut at = 0;
        let mut jumps = || {
            at += 1_000_000;
            at
        };
        assert!(!wait_for(done_at(100), &mut jumps, 100), "nor make it endless");
    }

    #[test]
    fn a_clock_that_jumps_back_does_not_end_it() {
        assert!(wait_for(done_at(5), clock([1000, 1010, 3, 13, 23]), 100));
        assert!(!wait_for(|| false, clock([1000, 1010, 3, 13]), 100), "nor make it endless");
        assert!(!wait_for(|| false, clock([u64::MAX, 0]), 100));
    }
}
