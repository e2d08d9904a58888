//! The counter.

/// A counter that goes at a constant rate on all CPUs alike, never backwards, also while a CPU idles. Arm: CNTPCT_EL0; x86-64: the TSC.
pub trait Counter {
    /// The counter, in ticks. On the exit path: one or two instructions.
    fn now() -> u64;

    /// Ticks in a second. Constant once the first CPU is set up, and not 0 then.
    fn frequency() -> u64;
}
