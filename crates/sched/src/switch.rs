//! Results of the scheduler's operations.

use crate::{CpuId, VcpuId};

/// The state of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum State {
    /// Powered off.
    #[default]
    Off,
    /// In this CPU's queue.
    Ready(CpuId),
    /// Running on this CPU: in the guest or in an exit.
    Running(CpuId),
    /// Waiting for an interrupt.
    Blocked,
    /// Suspended by the operator.
    Parked,
}

/// The placement of a started or woken vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a CPU that isn't kicked does not look at its queue"]
pub struct Placement {
    /// The CPU that runs or has queued it.
    pub cpu: CpuId,
    /// Whether that CPU must be kicked. If it is the calling CPU, it calls
    /// [`pick_next`](crate::Scheduler::pick_next) instead.
    pub kick: bool,
}

/// The next action of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the CPU runs what the switch says"]
pub struct Switch {
    /// The vCPU to run; `None` to idle, keeping the loaded vCPU.
    pub next: Option<Next>,
    /// Whether another vCPU waits for this CPU: if so, the slice timer runs and WFI is trapped.
    pub contended: bool,
    /// CPUs to kick: another one, if a vCPU has been migrated to it; and this one, if more vCPUs could go, or if it could
    /// not look for work on another CPU, whose lock was not free.
    pub kicks: Kicks,
}

/// The CPUs to kick after a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a CPU that isn't kicked does not look at its queue"]
pub struct Kicks {
    /// Another CPU.
    pub other: Option<CpuId>,
    /// This CPU.
    pub own: Option<CpuId>,
}

impl Kicks {
    /// No CPU.
    pub const NONE: Self = Self { other: None, own: None };

    /// The CPUs.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = CpuId> {
        self.other.into_iter().chain(self.own)
    }
}

/// The vCPU to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// The register state to put and load.
    pub loading: Loading,
}

/// The three cases of loading a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loading {
    /// It is already loaded here.
    Loaded,
    /// Nothing is loaded here, or the loaded vCPU was powered off and isn't put.
    Empty,
    /// This other vCPU is loaded here, and must be put before the CPU's lock is released.
    Replace(VcpuId),
}

/// Reason for which a vCPU was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// It isn't off, or not yet: it has been stopped, but its CPU has not released it.
    NotOff,
    /// It has no CPU: see [`Scheduler::configure`](crate::Scheduler::configure).
    NoCpu,
}
