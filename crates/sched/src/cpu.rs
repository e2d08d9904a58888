//! A CPU, as the scheduler knows it.

use stile_lock::Initial;

use crate::queue::RunQueue;
use crate::{CpuId, VcpuId};

/// The scheduler's state of a CPU, guarded by the CPU's lock, as are the vCPUs that belong to it: those that run, wait or are
/// loaded there, and those that did so last. Other CPUs access it to add, migrate or steal a vCPU.
// The fields that every operation uses come first; the size is a power of two, to index cheaply.
#[cfg_attr(test, derive(PartialEq, Debug))]
#[repr(C, align(4096))]
pub struct Cpu {
    /// The running vCPU.
    pub(crate) current: Option<VcpuId>,
    /// The loaded vCPU: the running one, or the last one to run, now blocked.
    pub(crate) loaded: Option<VcpuId>,
    /// Slices that expired here since the CPU became contended or last migrated a vCPU away.
    pub(crate) turns: u8,
    /// While shares are accounted: the slice timer is set, or a pending kick will set it. Remains set until the CPU's next switch, even if
    /// the waiting vCPUs leave.
    pub(crate) timed: bool,
    /// Incremented whenever a vCPU arrives here from elsewhere.
    pub(crate) arrivals: u32,
    /// The sleeping vCPU with the earliest deadline of those that belong to this CPU: the root of their tree.
    pub(crate) first_sleeper: Option<VcpuId>,
    /// The last CPU with whose load this one's was compared, if there are many.
    pub(crate) compared: Option<CpuId>,
    pub(crate) queue: RunQueue,
}

impl Initial for Cpu {
    const INITIAL: Self = Self {
        current: None,
        loaded: None,
        turns: 0,
        timed: false,
        arrivals: 0,
        first_sleeper: None,
        compared: None,
        queue: RunQueue::new(),
    };
}
