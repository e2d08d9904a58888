//! AArch64 accessors of a loaded vCPU.

use crate::arch::aarch64::host::cpu::{Cpu, Frame};
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
}

/// Parts of a CPU's block, and the registers of the loaded vCPU in memory.
pub struct Parts<'cpu> {
    /// Registers in memory.
    pub context: &'cpu mut VcpuContext,
    /// General registers that the exit path saved.
    pub frame: &'cpu mut Frame,
    /// FP, SIMD and SVE registers trap.
    pub fp_trapped: &'cpu mut bool,
    /// Pointer-authentication keys trap.
    pub keys_trapped: &'cpu mut bool,
}

impl Cpu {
    /// Parts of the block and the loaded vCPU's registers, to use at the same time.
    #[inline(always)]
    pub fn parts(&mut self) -> Parts<'_> {
        // SAFETY: the vCPU is loaded here; the reference borrows the block, which is the only way to it.
        let context = unsafe { self.vcpu().arch.context() };
        Parts { context, frame: &mut self.frame, fp_trapped: &mut self.fp_trapped, keys_trapped: &mut self.keys_trapped }
    }
}

/// The block together with the EL2 of the loaded vCPU. `exit.S` passes it to handlers that need both. A [`Cpu`] alone does
/// not lead to that state, so that code which has borrowed it cannot borrow it again.
#[repr(transparent)]
pub struct WholeCpu(Cpu);

impl WholeCpu {
    /// The whole of a CPU.
    ///
    /// # Safety
    /// Neither the caller nor its callers have a reference to the state of the loaded vCPU's EL2.
    #[inline(always)]
    pub unsafe fn of(cpu: &mut Cpu) -> &mut WholeCpu {
        // SAFETY: the types have the same layout.
        unsafe { &mut *core::ptr::from_mut(cpu).cast() }
    }

    /// The block, and the state of the loaded vCPU's EL2, if it has one.
    #[inline(always)]
    pub fn split(&mut self) -> (&mut Cpu, Option<&mut Nested>) {
        let vcpu = self.0.vcpu();
        let nested = if vcpu.arch.has_el2 {
            // SAFETY: the vCPU is loaded here, so that no other CPU refers to its state. On this CPU only this function
            // lends that of its EL2, and borrows `self`, of which there is one.
            unsafe { vcpu.arch.context() }.nested.as_deref_mut()
        } else {
            None
        };
        (&mut self.0, nested)
    }
}
