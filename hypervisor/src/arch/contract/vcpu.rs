//! The architecture's part of a vCPU.

use stile_blob::Techniques;
use stile_sched::VcpuId;

use crate::arena::Arena;
use crate::vm::Start;

/// Registers and interrupt state of a vCPU. What a CPU does with it while it is loaded is in [`PhysicalCpu`](super::PhysicalCpu).
pub trait VcpuPart: Sized {
    /// Bytes of its VM's arena that [`VcpuPart::new`] takes, beside the value itself, with the techniques that a VM has by default.
    const MEMORY: u64;

    /// A vCPU of a VM that has `of`, off, in the memory of its VM.
    ///
    /// # Errors
    /// There is not enough memory.
    fn new(id: VcpuId, of: usize, techniques: Techniques, arena: &'static Arena) -> Result<Self, &'static str>;

    /// Its number in its VM.
    fn index(&self) -> usize;

    /// The state after a reset of the VM. The vCPU is off.
    fn reset(&self);

    /// Sends requests for a vCPU that runs, but not as published, to its guest. False if it doesn't: then it must be woken.
    fn forward_requests(&self) -> bool {
        false
    }

    /// Shows the guest how long the vCPU, which its guest has asked about and which runs or is put here, has waited for its CPU. Nothing where
    /// guests can't ask.
    fn show_stolen_time(&self, _vm: &'static crate::vm::Vm, _nanoseconds: u64) {}

    /// How the vCPU, which is off and the VM's first, will start, after [`VcpuPart::reset`]. [`Platform::can_start`](super::Platform) said yes to
    /// the mode.
    fn set_start(&self, start: &Start);
}
