//! The mitigations that a machine uses.

use core::fmt;

/// Isolation of Stile's indirect branches from targets that a guest trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// IBRS, set once at boot.
    SetOnce,
    /// Automatic IBRS of AMD's, enabled once at boot.
    SetAutomatically,
    /// IBRS, set again at each exit.
    SetAtExits,
    /// IBPB at each exit: on AMD's processors, which need it for returns or have no IBRS.
    BarrierAtExits,
    /// The CPU has neither.
    Exposed,
}

/// Isolation of data in the CPU's buffers or L1 cache from a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// It does not leak.
    Unaffected,
    /// It is cleared at each entry.
    ClearedAtEntry,
    /// Affected or not known, and the CPU has no way to clear it.
    Exposed,
}

/// The mitigations of a machine with identical CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Branch targets.
    pub targets: Targets,
    /// Branch targets are invalidated (IBPB) at a switch to another VM.
    pub barrier: bool,
    /// Buffers, by VERW.
    pub buffers: Data,
    /// The L1 data cache, by IA32_FLUSH_CMD.
    pub l1d: Data,
}

impl Plan {
    /// Whether exits and entries need mitigations: filling the return stack, setting IBRS, clearing data.
    pub fn is_needed_at_exits(&self) -> bool {
        matches!(self.targets, Targets::SetAtExits | Targets::BarrierAtExits)
            || self.buffers == Data::ClearedAtEntry
            || self.l1d == Data::ClearedAtEntry
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets = match self.targets {
            Targets::SetOnce => "restricted by IBRS from boot on",
            Targets::SetAutomatically => "restricted by automatic IBRS",
            Targets::SetAtExits => "restricted by IBRS at exits",
            Targets::BarrierAtExits => "flushed by IBPB at exits",
            Targets::Exposed => "EXPOSED",
        };
        let barrier = if self.barrier { ", IBPB between VMs" } else { "" };
        let data = |data| match data {
            Data::Unaffected => "unaffected",
            Data::ClearedAtEntry => "cleared at entries",
            Data::Exposed => "EXPOSED",
        };
        write!(f, "branch targets {targets}{barrier}, buffers {}, L1 data cache {}", data(self.buffers), data(self.l1d))
    }
}
