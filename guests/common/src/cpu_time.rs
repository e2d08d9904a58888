//! Measures the CPU share of a vCPU that is always ready to run, by gaps in a counter.

/// Measurement of a vCPU.
pub struct Share {
    /// Elapsed ticks.
    pub all: u64,
    /// Ticks in which it ran.
    pub own: u64,
    /// The longest time in which it did not run, in ticks.
    pub longest: u64,
}

impl Share {
    /// Reads the counter repeatedly for `span` ticks. Readings at least `gap` ticks apart mean that the vCPU
    /// did not run in between.
    pub fn measure(span: u64, gap: u64, now: impl Fn() -> u64) -> Self {
        let start = now();
        let mut share = Self { all: 0, own: 0, longest: 0 };
        let mut last = start;
        while share.all < span {
            let next = now();
            let step = next.wrapping_sub(last);
            if step < gap {
                share.own += step;
            } else {
                share.longest = share.longest.max(step);
            }
            last = next;
            share.all = next.wrapping_sub(start);
        }
        share
    }

    /// The share, in thousandths.
    pub fn permille(&self) -> u64 {
        self.own * 1000 / self.all.max(1)
    }
}
