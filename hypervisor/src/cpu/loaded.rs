//! What of a vCPU belongs to the CPU that has it loaded.

use core::marker::PhantomData;

use stile_ledger::Ledger;

use crate::arch::Cpu;
use crate::vm::Vcpu;

/// The vCPU that is loaded on a CPU, whose block is borrowed for `'cpu`. Only that CPU can have such a value, and one at a time: its block is its
/// own, and the scheduler gives a vCPU to one CPU at a time. So what it leads to is reached by nobody else meanwhile. The back end adds its part.
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
}

impl<'cpu> Loaded<'cpu> {
    /// What others may reach, too.
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
