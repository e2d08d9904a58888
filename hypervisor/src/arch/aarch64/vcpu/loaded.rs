//! This architecture's part of a vCPU that is loaded.

use crate::arch::aarch64::host::cpu::{Cpu, Frame};
use crate::arch::aarch64::nested::state::Nested;
use crate::arch::aarch64::vcpu::context::VcpuContext;
use crate::cpu::Loaded;

impl<'cpu> Loaded<'cpu> {
    /// Its registers in memory.
    #[inline(always)]
    pub fn context(self) -> &'cpu mut VcpuContext {
        // SAFETY: see `Loaded`: this is the only way to them, for as long as the block is borrowed.
        unsafe { self.vcpu().arch.context() }
    }

    /// Its EL2's state, if it has an EL2.
    #[inline(always)]
    pub fn nested(self) -> Option<&'cpu mut Nested> {
        if self.vcpu().arch.has_el2 { self.context().nested.as_deref_mut() } else { None }
    }
}

impl Cpu {
    /// The loaded vCPU's registers in memory, those in the frame, and whether its FP registers trap.
    #[inline(always)]
    pub fn registers(&mut self) -> (&mut VcpuContext, &mut Frame, &mut bool) {
        // SAFETY: see `Loaded`: this is the only way to them; they are no part of the block.
        let context = unsafe { self.vcpu().arch.context() };
        (context, &mut self.frame, &mut self.fp_trapped)
    }

    /// The block, and what the loaded vCPU has beyond others, if it has an EL2. Handlers of such vCPUs begin with this, and none of them asks for
    /// it again by the block that it gets.
    #[inline(always)]
    pub fn with_nested(&mut self) -> Option<(&mut Self, &mut Nested)> {
        // SAFETY: see `Loaded`; it is no part of the block, and is the only reference as long as no handler asks again.
        let nested = unsafe { &mut *core::ptr::from_mut(self.loaded().nested()?) };
        Some((self, nested))
    }
}
