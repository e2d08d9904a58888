//! This architecture's part of a vCPU that is loaded.

use stile_apic::{HostTimer, LocalApic};

use crate::arch::x86_64::emulation::decoder::Decoder;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::context::VcpuContext;
use crate::cpu::Loaded;

impl<'cpu> Loaded<'cpu> {
    /// Its registers in memory.
    #[inline(always)]
    pub fn context(self) -> &'cpu mut VcpuContext {
        // SAFETY: see `Loaded`: this is the only way to them, for as long as the block is borrowed.
        unsafe { self.vcpu().arch.context() }
    }

    /// What finds its instructions.
    #[inline(always)]
    pub fn decoder(self) -> &'cpu mut Decoder {
        // SAFETY: as above.
        unsafe { self.vcpu().arch.decoder() }
    }

    /// Its local APIC.
    #[inline(always)]
    pub fn apic(self) -> &'cpu mut LocalApic<'static> {
        // SAFETY: as above.
        unsafe { self.vcpu().arch.apic() }
    }
}

impl Cpu {
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
