//! The VMX-preemption timer of L1 (SDM, "VMX-Preemption Timer"). To L1 it counts as long as L2 runs, also while L0
//! handles exits that L1 does not see: the processor's timer is set at each entry to L2 to what is left.

/// A timer that counts down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PreemptionTimer {
    /// The counter at the start.
    start: u64,
    value: u32,
}

impl PreemptionTimer {
    /// Starts a timer with a value. `counter`: L1's time-stamp counter.
    #[inline(always)]
    pub const fn new(value: u32, counter: u64) -> Self {
        Self { start: counter, value }
    }

    /// The timer's value when the counter has reached `counter`; 0 once it has expired. It counts when bit `rate` of the counter changes,
    /// which IA32_VMX_MISC reports. To a counter that was set back, it has expired.
    pub const fn remaining(self, counter: u64, rate: u32) -> u32 {
        let rate = rate & 0x1f;
        let last_change = self.start & !((1 << rate) - 1);
        let elapsed = counter.wrapping_sub(last_change) >> rate;
        if elapsed >= self.value as u64 { 0 } else { self.value - elapsed as u32 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_changes_of_its_bit() {
        let timer = PreemptionTimer::new(3, 0x1f);
        let at = [(0x1f, 3), (0x20, 2), (0x3f, 2), (0x40, 1), (0x5f, 1), (0x60, 0), (u64::MAX, 0), (0, 3)];
        for (counter, left) in at {
            assert_eq!(timer.remaining(counter, 5), left, "{counter:#x}");
        }
    }

    #[test]
    fn expires_at_once_or_late() {
        assert_eq!(PreemptionTimer::new(0, 1234).remaining(1234, 0), 0);
        let longest = PreemptionTimer::new(u32::MAX, 0);
        assert_eq!(longest.remaining((1 << 63) - (1 << 31) - 1, 31), 1);
        assert_eq!(longest.remaining((1 << 63) - (1 << 31), 31), 0);
    }

    #[test]
    fn a_counter_that_is_set_back_expires() {
        assert_eq!(PreemptionTimer::new(1000, 0x1000).remaining(0xfff, 0), 0);
    }

    proptest! {
        /// A plain model looks at the bit after each tick.
        #[test]
        fn as_a_timer_that_counts(value in 0..40u32, start: u64, rate in 0..6u32, ticks in 0..600u64) {
            let timer = PreemptionTimer::new(value, start);
            let (mut counter, mut left) = (start, value);
            for _ in 0..ticks {
                let before = counter >> rate & 1;
                counter = counter.wrapping_add(1);
                if counter >> rate & 1 != before {
                    left = left.saturating_sub(1);
                }
            }
            prop_assert_eq!(timer.remaining(counter, rate), left);
        }
    }
}
