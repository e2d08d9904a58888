//! Compare values of timers on the machine's own counter: a record has the ticks that are left.

/// Time left of a timer that never fires.
const NEVER: u64 = i64::MAX as u64;

/// Returns the ticks from `now` until a counter reaches `compare`: negative (modulo 2^64) if it has, saturated at
/// `i64::MAX`, which stands for never.
pub fn left(compare: u64, now: u64) -> u64 {
    if compare >= now { (compare - now).min(NEVER) } else { compare.wrapping_sub(now).max(1 << 63) }
}

/// Inverse of [`left`]: returns the compare value that is `left` ticks after `now`.
pub fn compare(left: u64, now: u64) -> u64 {
    if left == NEVER { u64::MAX } else { now.saturating_add_signed(left as i64) }
}

/// Returns by how many ticks a counter advances: `ticks` but for an error of up to `tolerance`. `offset`: how far it is
/// ahead of the machine's counter, of that `own` ticks by its guest's choice, both modulo 2^64. If the rest of the offset can be
/// 0 afterwards, it is.
pub fn rounded(offset: u64, own: u64, ticks: u64, tolerance: u64) -> u64 {
    let ahead = offset.wrapping_sub(own).wrapping_add(ticks) as i64;
    if ahead.unsigned_abs() > tolerance { ticks } else { ticks.checked_add_signed(ahead.wrapping_neg()).unwrap_or(ticks) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_timer_that_never_fires_does_not_fire() {
        for (then, now) in [(0, 0), (1000, 5), (1 << 40, 1 << 41), ((1 << 63) - 1, 1)] {
            assert_eq!(compare(left(u64::MAX, then), now), u64::MAX);
            assert_eq!(compare(left((1 << 63) + then, then), now), u64::MAX);
        }
        assert_eq!(compare(left(1 << 63, 1000), 2000), (1 << 63) + 1000);
    }

    #[test]
    fn a_timer_that_has_expired_stays_so() {
        assert_eq!(compare(left(0, 1000), 2000), 1000);
        assert_eq!(compare(left(0, 1000), 10), 0);
        assert_eq!(compare(left(0, u64::MAX), u64::MAX), (1 << 63) - 1);
    }

    proptest! {
        #[test]
        fn what_has_expired_and_what_has_not_is_the_same(at: u64, then: u64, now in 0..u64::MAX - 1) {
            prop_assert_eq!(compare(left(at, then), now) <= now, at <= then);
        }
    }

    #[test]
    fn a_counter_becomes_the_machines_if_it_is_near() {
        for (offset, ticks, expected) in
            [(-1000_i64, 1000, 1000), (-1000, 1003, 1000), (-1000, 998, 1000), (-1000, 989, 989), (3, 1, 1), (500, 7, 7)]
        {
            assert_eq!(rounded(offset as u64, 0, ticks, 10), expected);
        }
        assert_eq!(rounded(u64::MAX, 0, 2, 10), 1);
    }

    #[test]
    fn a_guests_own_offset_stays() {
        for own in [-1000_i64, -5, 0, 5, 1000] {
            assert_eq!(rounded((own - 1000) as u64, own as u64, 1003, 10), 1000);
            assert_eq!(rounded((own - 1000) as u64, own as u64, 1011, 10), 1011);
        }
    }
}
