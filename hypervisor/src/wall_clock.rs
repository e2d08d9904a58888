//! Time of day for guests' clocks: the board's clock at boot, advanced by the counter.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::Arch;
use crate::arch::contract::Counter;

/// Unix time at which the counter was zero; 0 if the board has no clock.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Sets the time of day: the board's clock reads `seconds` after 1970.
pub fn set(now: u64) {
    EPOCH.store(now.saturating_sub(counted()), Ordering::Relaxed);
}

/// Unix time in seconds; time since the counter's start if the board has no clock.
pub fn seconds() -> u64 {
    EPOCH.load(Ordering::Relaxed) + counted()
}

/// Nanoseconds in a second.
const NANOSECONDS: u64 = 1_000_000_000;

/// Unix time in nanoseconds at a count of the counter.
pub fn nanoseconds_at(ticks: u64) -> u64 {
    let counted = u128::from(ticks) * u128::from(NANOSECONDS) / u128::from(Arch::frequency().max(1));
    EPOCH.load(Ordering::Relaxed).saturating_mul(NANOSECONDS).saturating_add(u64::try_from(counted).unwrap_or(u64::MAX))
}

/// Full seconds in a number of nanoseconds.
pub const fn seconds_in(nanoseconds: u64) -> u64 {
    nanoseconds / NANOSECONDS
}

/// Ticks of the counter in a number of nanoseconds, saturated.
pub fn ticks_in(nanoseconds: u64) -> u64 {
    let ticks = u128::from(nanoseconds) * u128::from(Arch::frequency()) / u128::from(NANOSECONDS);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Ticks of the counter at a Unix time, saturated.
pub fn ticks_at(seconds: u64) -> u64 {
    seconds.saturating_sub(EPOCH.load(Ordering::Relaxed)).saturating_mul(Arch::frequency())
}

/// Seconds that the counter has counted.
fn counted() -> u64 {
    // Firmware may have left the frequency unset.
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
