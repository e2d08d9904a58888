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

    /// VMX operation, if its VM is nested.
    #[inline(always)]
    pub fn vmx(self) -> Option<&'cpu mut GuestVmx> {
        // SAFETY: `Loaded` is exclusive for this vCPU, and the reference borrows it.
        unsafe { self.vcpu().arch.vmx() }
    }

    /// Local APIC.
    #[inline(always)]
    pub fn apic(self) -> &'cpu mut LocalApic<'static> {
        // SAFETY: `Loaded` is exclusive for this vCPU, and the reference borrows it.
        unsafe { self.vcpu().arch.apic() }
    }
}

impl Cpu {
    /// The block, and the loaded vCPU's registers in memory, for load, which does not ask for them again.
    #[inline(always)]
    pub fn with_context(&mut self) -> (&mut Self, &mut VcpuContext) {
        // SAFETY: `Loaded` is exclusive for this vCPU; the registers are not part of the block, and load does not
        // call this twice.
        let context = unsafe { &mut *core::ptr::from_mut(self.loaded().context()) };
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

    /// The block, and the VMX operation of the loaded vCPU, if its VM is nested. Handlers of its exits start with
    /// this call, and do not repeat it.
    #[inline(always)]
    pub fn with_vmx(&mut self) -> Option<(&mut Self, &mut GuestVmx)> {
        // SAFETY: `Loaded` is exclusive for this vCPU; the state is not part of the block, and no handler calls this
        // twice.
        let vmx = unsafe { &mut *core::ptr::from_mut(self.loaded().vmx()?) };
        Some((self, vmx))
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
