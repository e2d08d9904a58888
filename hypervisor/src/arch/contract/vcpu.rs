//! Architecture-specific part of a vCPU.

use stile_blob::{Techniques, Topology};
use stile_sched::VcpuId;

use crate::arena::Arena;
use crate::vm::Start;

/// Registers and interrupt state of a vCPU. Operations on a loaded vCPU are in [`PhysicalCpu`](super::PhysicalCpu).
pub trait VcpuPart: Sized {
    /// Bytes of its VM's arena that [`VcpuPart::new`] allocates in addition to the value itself, with default
    /// techniques.
    const MEMORY: u64;

    /// Maximum number of these bytes with other techniques.
    fn memory(_techniques: Techniques) -> u64 {
        Self::MEMORY
    }

    /// Creates a vCPU, which is off, of a VM with this topology, in the VM's arena.
    ///
    /// # Errors
    /// No memory is left.
    fn new(id: VcpuId, topology: Topology, techniques: Techniques, arena: &'static Arena) -> Result<Self, &'static str>;

    /// Index in its VM.
    fn index(&self) -> usize;

    /// Resets the vCPU, which is off, with its VM. The first one is also reset before it is loaded to reset the VM, and
    /// again with it, while its registers are dropped ([`PhysicalCpu::power_down`](super::PhysicalCpu::power_down)).
    fn reset(&self);

    /// Forwards requests to a vCPU that runs without being published. Returns false if it does not: then it must be
    /// woken.
    fn forward_requests(&self) -> bool {
        false
    }

    /// Publishes to the guest the time that the vCPU, which runs or was just put here, has waited for its CPU, if
    /// enabled. No effect where guests cannot enable it.
    fn show_stolen_time(&self, _vm: &'static crate::vm::Vm, _nanoseconds: u64) {}

    /// Sets the start of the VM's first vCPU after [`VcpuPart::reset`], in the same state.
    /// [`Platform::can_start`](super::Platform) has accepted the mode.
    fn set_start(&self, start: &Start);
}
