//! VMX's part of a CPU's block.

use crate::vm::Vcpu;

/// State of a CPU.
#[repr(C)]
pub struct OfCpu {
    /// EPT pointer of the guest's own view, while the loaded vCPU may enter the gate.
    pub view: u64,
    /// The vCPU whose slot of the gate was closed here, until its siblings are kicked.
    pub closed: Option<&'static Vcpu>,
}

/// Words that are accessed while the block is borrowed: none.
#[repr(C)]
pub struct OfLocal;

impl OfLocal {
    /// Their first values.
    pub const fn new() -> OfLocal {
        OfLocal
    }
}

/// Whether a global interrupt flag masks interrupts at entries and exits: only AMD-V has one.
pub const HAS_GLOBAL_FLAG: bool = false;
