//! x86-64 accessors of a loaded vCPU.

use core::ops::{Deref, DerefMut};

use stile_apic::HostTimer;
use stile_x86_decode::Context;

use crate::arch::x86_64::emulation::decoder::Decoder;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::context::VcpuContext;
use crate::arch::x86_64::virt::nested::GuestVmx;
use crate::arch::x86_64::virt::paravirtual_eoi::LocalApic;
use crate::cpu::Loaded;

impl<'cpu> Loaded<'cpu> {
    /// Registers in memory.
    #[inline(always)]
    pub fn context(self) -> &'cpu mut VcpuContext {
        // SAFETY: `Loaded` is exclusive for this vCPU, and the reference borrows it.
        unsafe { self.vcpu().arch.context() }
    }

    /// Local APIC.
    #[inline(always)]
    pub fn apic(self) -> &'cpu mut LocalApic<'static> {
        // SAFETY: `Loaded` is exclusive for this vCPU, and the reference borrows it.
        unsafe { self.vcpu().arch.apic() }
    }
}

impl Loaded<'static> {
    /// VMX operation, if its VM is nested. The vCPU was taken out of the block, which does not lead to it any more.
    pub fn vmx(&mut self) -> Option<&mut GuestVmx> {
        // SAFETY: a `Loaded` that borrows no block is the only one for this vCPU, and the reference borrows it.
        unsafe { self.vcpu().arch.vmx() }
    }
}

/// The block together with the VMX operation and the instruction decoder of the loaded vCPU. `exit.S` passes it to
/// handlers that need one of them beside the block. A [`Cpu`] alone does not lead to that state, so that code which has
/// borrowed it cannot borrow it again.
#[repr(transparent)]
pub struct WholeCpu(Cpu);

impl WholeCpu {
    /// The whole of a CPU.
    ///
    /// # Safety
    /// Neither the caller nor its callers have a reference to the loaded vCPU's VMX operation or decoder.
    pub unsafe fn of(cpu: &mut Cpu) -> &mut WholeCpu {
        // SAFETY: the types have the same layout.
        unsafe { &mut *core::ptr::from_mut(cpu).cast() }
    }

    /// The block, and the VMX operation of the loaded vCPU, if its VM is nested.
    #[inline(always)]
    pub fn split(&mut self) -> (&mut Cpu, Option<&mut GuestVmx>) {
        // SAFETY: the vCPU is loaded here, so that no other CPU refers to its state. On this CPU only this function
        // lends it, and borrows `self`, of which there is one.
        let vmx = unsafe { self.0.vcpu().arch.vmx() };
        (&mut self.0, vmx)
    }

    /// The block, and the loaded vCPU's decoder.
    #[inline(always)]
    pub fn with_decoder(&mut self) -> (&mut Cpu, &mut Decoder) {
        // SAFETY: as in `split`; `context_beside` borrows the decoder only while something that `split` lent exists.
        let decoder = unsafe { self.0.vcpu().arch.decoder() };
        (&mut self.0, decoder)
    }

    /// Execution context and memory access of the loaded vCPU.
    #[inline(always)]
    pub fn context(&mut self) -> Context {
        // SAFETY: `with_decoder` borrows `self`, so that nothing that it lent exists.
        unsafe { context(&mut self.0) }
    }
}

impl Deref for WholeCpu {
    type Target = Cpu;

    #[inline(always)]
    fn deref(&self) -> &Cpu {
        &self.0
    }
}

impl DerefMut for WholeCpu {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Cpu {
        &mut self.0
    }
}

/// [`WholeCpu::context`] for code that has borrowed the loaded vCPU's VMX operation.
#[inline(always)]
pub fn context_beside(cpu: &mut Cpu, _vmx: &mut GuestVmx) -> Context {
    // SAFETY: `_vmx` borrows the `WholeCpu`, so that nothing that `with_decoder` lent exists.
    unsafe { context(cpu) }
}

/// Execution context of the loaded vCPU.
///
/// # Safety
/// No reference to its decoder exists.
unsafe fn context(cpu: &mut Cpu) -> Context {
    let vcpu = cpu.vcpu();
    // SAFETY: the vCPU is loaded here, and by the function's contract this is the only reference.
    *unsafe { vcpu.arch.decoder() }.context(vcpu.vm())
}

impl Cpu {
    /// The block, which does not lead to the registers without exclusive access, and the loaded vCPU's registers in
    /// memory.
    #[inline(always)]
    pub fn with_context(&mut self) -> (&Self, &mut VcpuContext) {
        // SAFETY: the vCPU is loaded here; the reference borrows the block exclusively until both results are gone.
        let context = unsafe { self.vcpu().arch.context() };
        (self, context)
    }

    /// Local APIC of the vCPU whose exit is being handled.
    #[inline(always)]
    pub fn apic(&mut self) -> &mut LocalApic<'static> {
        self.loaded().apic()
    }

    /// This CPU's timer, and the local APIC of the loaded vCPU, if any.
    #[inline(always)]
    pub fn timer_and_apic(&mut self) -> (&mut HostTimer, Option<&mut LocalApic<'static>>) {
        // SAFETY: `Loaded` is exclusive for this vCPU; the APIC is not part of the block.
        let apic = self.vcpu.map(|vcpu| unsafe { vcpu.arch.apic() });
        (&mut self.timer, apic)
    }
}
