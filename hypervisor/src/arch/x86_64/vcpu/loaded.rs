//! x86-64 accessors of a loaded vCPU.

use stile_apic::{HostTimer, LocalApic};

use crate::arch::x86_64::emulation::decoder::Decoder;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::nested::GuestVmx;
use crate::arch::x86_64::vcpu::context::VcpuContext;
use crate::cpu::Loaded;

impl<'cpu> Loaded<'cpu> {
    /// Registers in memory.
    #[inline(always)]
    pub fn context(self) -> &'cpu mut VcpuContext {
        // SAFETY: `Loaded` is exclusive for this vCPU, and the reference borrows it.
        unsafe { self.vcpu().arch.context() }
    }

    /// Instruction decoder.
    #[inline(always)]
    pub fn decoder(self) -> &'cpu mut Decoder {
        // SAFETY: `Loaded` is exclusive for this vCPU, and the reference borrows it.
        unsafe { self.vcpu().arch.decoder() }
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

/// The block together with the VMX operation of the loaded vCPU. `exit.S` passes it to handlers that need both. A [`Cpu`]
/// alone does not lead to that state, so that code which has borrowed it cannot borrow it again.
#[repr(transparent)]
pub struct WholeCpu(Cpu);

impl WholeCpu {
    /// The whole of a CPU.
    ///
    /// # Safety
    /// Neither the caller nor its callers have a reference to the loaded vCPU's VMX operation.
    pub unsafe fn of(cpu: &mut Cpu) -> &mut WholeCpu {
        // SAFETY: the types have the same layout.
        unsafe { &mut *core::ptr::from_mut(cpu).cast() }
    }

    /// The block.
    #[inline(always)]
    pub fn cpu(&mut self) -> &mut Cpu {
        &mut self.0
    }

    /// The block, and the VMX operation of the loaded vCPU, if its VM is nested.
    #[inline(always)]
    pub fn split(&mut self) -> (&mut Cpu, Option<&mut GuestVmx>) {
        // SAFETY: the vCPU is loaded here, so that no other CPU refers to its state. On this CPU only this function
        // lends it, and borrows `self`, of which there is one.
        let vmx = unsafe { self.0.vcpu().arch.vmx() };
        (&mut self.0, vmx)
    }
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

    /// The block, and the loaded vCPU's decoder. Emulation of an instruction starts with this call, and does not
    /// repeat it.
    #[inline(always)]
    pub fn with_decoder(&mut self) -> (&mut Self, &mut Decoder) {
        // SAFETY: `Loaded` is exclusive for this vCPU; the decoder is not part of the block, and emulation does not
        // call this twice.
        let decoder = unsafe { &mut *core::ptr::from_mut(self.loaded().decoder()) };
        (self, decoder)
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
