//! Outcomes of exit handlers, and the slow path for outcomes other than immediate re-entry.

use stile_ledger::RowId;

use super::Leave;
use crate::arch::Cpu;
use crate::vm::power::{self, End};

/// The ledger's row of an exit, and whether its vCPU is re-entered. Each back end's `exit.S` tests the bits.
#[repr(transparent)]
pub struct Outcome(u64);

impl Outcome {
    /// Set if the scheduler selects the next vCPU.
    pub const LEAVE_BIT: u32 = 63;
    /// Bit with an architecture-specific meaning.
    pub const OWN_BIT: u32 = 62;

    /// Re-entry with nothing loaded or put: the common case.
    #[inline(always)]
    pub const fn again(row: RowId) -> Outcome {
        Outcome(row.raw() as u64)
    }

    /// The scheduler selects the next vCPU; `cpu.leave` has the reason.
    #[inline(always)]
    pub const fn leave(row: RowId) -> Outcome {
        Outcome::again(row).with(Outcome::LEAVE_BIT)
    }

    /// Sets one of the bits.
    #[inline(always)]
    pub const fn with(self, bit: u32) -> Outcome {
        Outcome(self.0 | 1 << bit)
    }

    /// Clears one of the bits.
    #[inline(always)]
    #[allow(dead_code, reason = "not every architecture has an outcome that changes")]
    pub const fn without(self, bit: u32) -> Outcome {
        Outcome(self.0 & !(1 << bit))
    }

    /// Whether one of the bits is set.
    #[inline(always)]
    #[allow(dead_code, reason = "not every architecture has an outcome that changes")]
    pub const fn has(&self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    /// The ledger's row.
    pub const fn row(&self) -> RowId {
        RowId::masked(self.0 as usize)
    }
}

#[cfg_attr(not(target_os = "none"), allow(dead_code))]
impl Cpu {
    /// Ends the VM of the vCPU that exited, and leaves the vCPU.
    pub fn end_vm(&mut self, row: RowId, how: End) -> Outcome {
        power::end(self.vcpu().vm(), how);
        self.leave = Leave::Resched;
        Outcome::leave(row)
    }
}

/// Tail of the slow path, for outcomes other than re-entry. `exit.S` enters the vCPU that is loaded on return.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
extern "C" fn leave_vcpu(cpu: &mut Cpu, outcome: Outcome) {
    super::leave(cpu, outcome.row());
}
