//! The loaded vCPU, as its CPU alone may reach it.

use core::marker::PhantomData;

use stile_ledger::Ledger;

use crate::arch::Cpu;
use crate::vm::Vcpu;

/// A vCPU that is loaded on this CPU, and the right to its registers and interrupt state. Only this CPU can have such a value, and one at a time:
/// it borrows the CPU's block for `'cpu`, or was taken out of it ([`Cpu::unload`]), and the scheduler gives a vCPU to one CPU at a time. The back
/// end adds what it leads to.
pub struct Loaded<'cpu> {
    vcpu: &'static Vcpu,
    cpu: PhantomData<&'cpu mut Cpu>,
}

impl Cpu {
    /// The vCPU that the exit being handled came from, or another one that is loaded here.
    #[inline(always)]
    pub fn loaded(&mut self) -> Loaded<'_> {
        Loaded { vcpu: self.vcpu(), cpu: PhantomData }
    }

    /// Takes the vCPU that is loaded here, if there is one, out of the block, to put it or to turn it off.
    pub(super) fn unload(&mut self) -> Option<Loaded<'static>> {
        let vcpu = self.vcpu.take()?;
        Some(Loaded { vcpu, cpu: PhantomData })
    }
}

impl<'cpu> Loaded<'cpu> {
    /// Borrows this value, for one of the methods that take it.
    #[inline(always)]
    #[allow(dead_code, reason = "not every architecture needs more than one of them")]
    pub fn borrow(&mut self) -> Loaded<'_> {
        Loaded { vcpu: self.vcpu, cpu: PhantomData }
    }

    /// The vCPU's shared part.
    #[inline(always)]
    pub fn vcpu(&self) -> &'static Vcpu {
        self.vcpu
    }

    /// Its ledger. The exit path proper writes to it, too, but not while a handler runs.
    #[inline(always)]
    pub fn ledger(self) -> &'cpu mut Ledger {
        // SAFETY: see `Loaded`: this is the only reference to the ledger, for as long as the block is borrowed.
        unsafe { &mut *self.vcpu.ledger() }
    }
}
