//! Why a vCPU is left.

/// Why a vCPU is left.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// A reschedule was requested, or the vCPU was stopped.
    Resched,
    /// The timer rang: a slice may be over, or a sleeping vCPU's deadline has come.
    Timer,
    /// The vCPU waits for an interrupt.
    Wait,
    /// The vCPU has nothing to do just now, but is ready.
    Yield,
    /// The vCPU powers itself off.
    Off,
}
