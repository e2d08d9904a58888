//! AArch64 accessors of a loaded vCPU.

use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::nested::state::Nested;
use crate::arch::aarch64::vcpu::context::VcpuContext;
use crate::cpu::Loaded;

impl<'cpu> Loaded<'cpu> {
    /// Registers in memory.
    #[inline(always)]
    pub fn context(self) -> &'cpu mut VcpuContext {
        // SAFETY: `Loaded` is exclusive for this vCPU, and the reference borrows it.
        unsafe { self.vcpu().arch.context() }
    }

    /// State of its EL2, if it has one.
    #[inline(always)]
    pub fn nested(self) -> Option<&'cpu mut Nested> {
        if self.vcpu().arch.has_el2 { self.context().nested.as_deref_mut() } else { None }
    }
}

impl Cpu {
    /// Registers in memory, and the block.
    #[inline(always)]
    pub fn with_context(&mut self) -> (&mut VcpuContext, &mut Cpu) {
        // SAFETY: `Loaded` is exclusive for this vCPU, and the reference borrows it; the registers are not part of
        // the block.
        let context = unsafe { self.vcpu().arch.context() };
        (context, self)
    }

    /// The block, and the nested state of the loaded vCPU, if it has an EL2. Handlers of such vCPUs start with this
    /// call, and do not repeat it.
    #[inline(always)]
    pub fn with_nested(&mut self) -> Option<(&mut Self, &mut Nested)> {
        // SAFETY: `Loaded` is exclusive for this vCPU; the state is not part of the block, and no handler calls this
        // twice.
        let nested = unsafe { &mut *core::ptr::from_mut(self.loaded().nested()?) };
        Some((self, nested))
    }
}
