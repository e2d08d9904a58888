//! State of a VM with protected pages, functions, windows or nesting that a CPU loads.

use super::Vm;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::arch::x86_64::virt::nested;
use crate::cpu::Loaded;

impl Vm {
    /// Called when a vCPU of a VM with protected pages, functions, windows or nesting is loaded on this CPU.
    #[cold]
    pub fn load(&self, cpu: &mut Cpu) {
        if let Some(protected) = &self.protected {
            protected.load(cpu);
        }
        if let Some(functions) = self.functions {
            functions.invalidations.load(cpu.index);
        }
        if let Some(invalidations) = self.window_invalidations {
            invalidations.load(cpu.index);
        }
        // SAFETY: the vCPU is being loaded: no handler runs, and so none has its state.
        if let (cpu, Some(vmx)) = unsafe { WholeCpu::of(cpu) }.split() {
            nested::load(cpu, vmx);
        }
    }

    /// Called when such a vCPU is put.
    #[cold]
    pub fn put(&self, cpu: &mut Cpu, vcpu: &mut Loaded<'static>) {
        if let Some(protected) = &self.protected {
            protected.put(cpu);
        }
        if let Some(functions) = self.functions {
            functions.invalidations.put(cpu.index);
        }
        if let Some(invalidations) = self.window_invalidations {
            invalidations.put(cpu.index);
        }
        nested::put(cpu, vcpu.vmx());
    }
}
