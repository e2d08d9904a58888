//! Exclusive access to the loaded vCPU.

use core::marker::PhantomData;

use stile_ledger::Ledger;

use crate::arch::Cpu;
use crate::vm::Vcpu;

/// A vCPU that is loaded on this CPU, and the exclusive right to its registers and interrupt state. At most one such
/// value exists per CPU: it borrows the CPU's block for `'cpu`, or was taken out of it ([`Cpu::unload`]), and the
/// scheduler gives a vCPU to one CPU at a time. The back end adds accessors.
pub struct Loaded<'cpu> {
    vcpu: &'static Vcpu,
    cpu: PhantomData<&'cpu mut Cpu>,
}

impl Cpu {
    /// The vCPU whose exit is being handled, or another one that is loaded here.
    #[inline(always)]
    pub fn loaded(&mut self) -> Loaded<'_> {
        Loaded { vcpu: self.vcpu(), cpu: PhantomData }
    }

    /// Takes the loaded vCPU, if any, out of the block, to put it or to power it off.
    pub(super) fn unload(&mut self) -> Option<Loaded<'static>> {
        let vcpu = self.vcpu.take()?;
        Some(Loaded { vcpu, cpu: PhantomData })
    }
}

impl<'cpu> Loaded<'cpu> {
    /// Reborrows this value, for methods that consume it.
    #[inline(always)]
    #[allow(dead_code, reason = "not every architecture needs more than one of them")]
    pub fn borrow(&mut self) -> Loaded<'_> {
        Loaded { vcpu: self.vcpu, cpu: PhantomData }
    }

    /// The shared part of the vCPU.
    #[inline(always)]
    pub fn vcpu(&self) -> &'static Vcpu {
        self.vcpu
    }

    /// The vCPU's ledger. The exit path writes to it as well, but not while a handler runs.
    #[inline(always)]
    pub fn ledger(self) -> &'cpu mut Ledger {
        // SAFETY: see `Loaded`: this is the only reference to the ledger, for as long as the block is borrowed.
        unsafe { &mut *self.vcpu.ledger() }
    }
}
