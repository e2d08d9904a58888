//! The time of day, for guests' clocks: what the board's clock said at boot, and what the counter has counted since.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::Arch;
use crate::arch::contract::Counter;

/// Seconds from 1970 to when the counter was zero; 0 if the board has no clock, so that time begins with the counter.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// It is so many seconds after 1970, as the board's clock says.
pub fn set(now: u64) {
    EPOCH.store(now.saturating_sub(counted()), Ordering::Relaxed);
}

/// Seconds since 1970; since the counter's start, if the board has no clock.
pub fn seconds() -> u64 {
    EPOCH.load(Ordering::Relaxed) + counted()
}

/// Ticks of the counter at a time of day in seconds; those that it will never count to are the most that there are.
pub fn ticks_at(seconds: u64) -> u64 {
    seconds.saturating_sub(EPOCH.load(Ordering::Relaxed)).saturating_mul(Arch::frequency())
}

/// Seconds that the counter has counted.
fn counted() -> u64 {
    // Firmware may have forgotten to say how fast it counts.
    Arch::now() / Arch::frequency().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_ticks_from_the_counters_start_on() {
        set(1_700_000_000);
        let now = seconds();
        assert!((1_700_000_000..1_800_000_000).contains(&now));
        assert_eq!(ticks_at(now + 10) - ticks_at(now), 10 * Arch::frequency());
        assert_eq!(ticks_at(0), 0, "what was before the counter began has come");
        assert_eq!(ticks_at(u64::MAX), u64::MAX);
    }
}
