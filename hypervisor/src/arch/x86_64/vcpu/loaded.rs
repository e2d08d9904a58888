//! This architecture's part of a vCPU that is loaded.

use stile_apic::{HostTimer, LocalApic};

use crate::arch::x86_64::emulation::decoder::Decoder;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::nested::GuestVmx;
use crate::arch::x86_64::vcpu::context::VcpuContext;
use crate::cpu::Loaded;

impl<'cpu> Loaded<'cpu> {
    /// Its registers in memory.
    #[inline(always)]
    pub fn context(self) -> &'cpu mut VcpuContext {
        // SAFETY: see `Loaded`: this is the only way to them, for as long as the block is borrowed.
        unsafe { self.vcpu().arch.context() }
    }

    /// Finds and decodes its instructions.
    #[inline(always)]
    pub fn decoder(self) -> &'cpu mut Decoder {
        // SAFETY: see `Loaded`: this is the only way to it, for as long as the block is borrowed.
        unsafe { self.vcpu().arch.decoder() }
    }

    /// Its VMX operation, if its VM is nested.
    #[inline(always)]
    pub fn vmx(self) -> Option<&'cpu mut GuestVmx> {
        // SAFETY: see `Loaded`: this is the only way to it, for as long as the block is borrowed.
        unsafe { self.vcpu().arch.vmx() }
    }

    /// Its local APIC.
    #[inline(always)]
    pub fn apic(self) -> &'cpu mut LocalApic<'static> {
        // SAFETY: see `Loaded`: this is the only way to it, for as long as the block is borrowed.
        unsafe { self.vcpu().arch.apic() }
    }
}

impl Cpu {
    /// The block, and the loaded vCPU's registers in memory. For loading them, which does not ask for them again by the block.
    #[inline(always)]
    pub fn with_context(&mut self) -> (&mut Self, &mut VcpuContext) {
        // SAFETY: see `Loaded`; they are no part of the block, and this is the only reference as long as loading does not ask again.
        let context = unsafe { &mut *core::ptr::from_mut(self.loaded().context()) };
        (self, context)
    }

    /// The block, and what finds the loaded vCPU's instructions. Whoever emulates one begins with this, and nothing that the instruction does
    /// asks for it again by the block.
    #[inline(always)]
    pub fn with_decoder(&mut self) -> (&mut Self, &mut Decoder) {
        // SAFETY: see `Loaded`; it is no part of the block, and is the only reference as long as the instruction does not ask again.
        let decoder = unsafe { &mut *core::ptr::from_mut(self.loaded().decoder()) };
        (self, decoder)
    }

    /// The block, and the VMX operation of the loaded vCPU, if its VM is nested. Handlers of its exits begin with this, and none of them asks for
    /// it again by the block that it gets.
    #[inline(always)]
    pub fn with_vmx(&mut self) -> Option<(&mut Self, &mut GuestVmx)> {
        // SAFETY: see `Loaded`; it is no part of the block, and is the only reference as long as no handler asks again.
        let vmx = unsafe { &mut *core::ptr::from_mut(self.loaded().vmx()?) };
        Some((self, vmx))
    }

    /// The local APIC of the vCPU that the exit being handled came from.
    #[inline(always)]
    pub fn apic(&mut self) -> &mut LocalApic<'static> {
        self.loaded().apic()
    }

    /// This CPU's timer, and the local APIC of the vCPU that is loaded, if there is one.
    #[inline(always)]
    pub fn timer_and_apic(&mut self) -> (&mut HostTimer, Option<&mut LocalApic<'static>>) {
        // SAFETY: see `Loaded`; the APIC is no part of the block.
        let apic = self.vcpu.map(|vcpu| unsafe { vcpu.arch.apic() });
        (&mut self.timer, apic)
    }
}
