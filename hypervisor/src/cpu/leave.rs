//! Reasons for leaving a vCPU.

/// Reason for leaving a vCPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// A reschedule was requested, or the vCPU was stopped.
    Resched,
    /// The timer fired: a slice may have expired, or a sleeping vCPU's deadline may have passed.
    Timer,
    /// The vCPU waits for an interrupt.
    Wait,
    /// The vCPU yields: it stays ready.
    Yield,
    /// The vCPU powers itself off.
    Off,
}
