//! This architecture's part of a vCPU that is loaded.

use crate::arch::aarch64::host::cpu::{Cpu, Frame};
use crate::arch::aarch64::vcpu::context::VcpuContext;
use crate::cpu::Loaded;

impl<'cpu> Loaded<'cpu> {
    /// Its registers in memory.
    #[inline(always)]
    pub fn context(self) -> &'cpu mut VcpuContext {
        // SAFETY: see `Loaded`: this is the only way to them, for as long as the block is borrowed.
        unsafe { self.vcpu().arch.context() }
    }
}

impl Cpu {
    /// The loaded vCPU's registers in memory, those in the frame, and whether its FP registers trap.
    #[inline(always)]
    pub fn registers(&mut self) -> (&mut VcpuContext, &mut Frame, &mut bool) {
        // SAFETY: as above; they are no part of the block.
        let context = unsafe { self.vcpu().arch.context() };
        (context, &mut self.frame, &mut self.fp_trapped)
    }
}
