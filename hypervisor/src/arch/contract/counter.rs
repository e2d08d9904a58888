//! The counter.

/// A counter that runs at a constant rate, identical on all CPUs, monotonic, and not stopped by idling. Arm:
/// CNTPCT_EL0; x86-64: the TSC.
pub trait Counter {
    /// Current count, in ticks. On the exit path: one or two instructions.
    fn now() -> u64;

    /// Ticks per second. Constant and nonzero once the boot CPU is set up.
    fn frequency() -> u64;
}
