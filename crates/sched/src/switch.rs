//! What the scheduler answers.

use crate::{CpuId, VcpuId};

/// What a vCPU is doing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum State {
    /// Powered off.
    #[default]
    Off,
    /// In this CPU's queue.
    Ready(CpuId),
    /// On this CPU: in its guest, or in an exit.
    Running(CpuId),
    /// Waiting for an interrupt.
    Blocked,
    /// Held back by the operator, whatever its guest wants.
    Parked,
}

/// Where a vCPU has been put that was started or woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a CPU that isn't kicked does not look at its queue"]
pub struct Placement {
    /// The CPU that runs it, or has it in its queue.
    pub cpu: CpuId,
    /// Whether that CPU must be kicked. If it is the caller's own, it calls
    /// [`pick_next`](crate::Scheduler::pick_next) instead.
    pub kick: bool,
}

/// What a CPU does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the CPU runs what the switch says"]
pub struct Switch {
    /// The vCPU to run; `None` to idle, with whatever is in the registers left there.
    pub next: Option<Next>,
    /// Whether another vCPU waits for this CPU: the slice timer is to run, and WFI to be trapped.
    /// Otherwise, neither.
    pub contended: bool,
    /// Another CPU that must be kicked, because it has been given a vCPU.
    pub kick: Option<CpuId>,
}

/// The vCPU to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next {
    /// Which.
    pub vcpu: VcpuId,
    /// What that asks of the CPU's registers.
    pub loading: Loading,
}

/// The three cases of loading a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loading {
    /// It is already loaded here.
    Loaded,
    /// Nothing is loaded here, or what is has been powered off and needn't be put.
    Empty,
    /// This other one is loaded here and must be put first, before the scheduler's lock is
    /// released.
    Replace(VcpuId),
}
