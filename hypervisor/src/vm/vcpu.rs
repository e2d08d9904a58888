//! A virtual CPU, as the parts that no architecture differs in see it.

use core::sync::atomic::AtomicU32;

use stile_ledger::Ledger;
use stile_sched::VcpuId;

use super::Vm;
use crate::arch;
use crate::cpu::NOWHERE;
use crate::once::Once;

/// A virtual CPU.
pub struct Vcpu {
    /// Its name.
    pub id: VcpuId,
    vm: Once<&'static Vm>,
    /// The CPU on which it runs, not merely is loaded; [`NOWHERE`] otherwise.
    pub runs_on: AtomicU32,
    /// Registers, and the interrupt controller's private part.
    pub arch: arch::Vcpu,
    ledger: *mut Ledger,
}

// SAFETY: all but `ledger` is Sync, and that is reached only as `with_ledger` and `copy_ledger` say.
unsafe impl Sync for Vcpu {}

impl Vcpu {
    /// A vCPU that is off.
    pub fn new(id: VcpuId, arch: arch::Vcpu, ledger: &'static mut Ledger) -> Vcpu {
        ledger.reset();
        Vcpu { id, vm: Once::new(), runs_on: AtomicU32::new(NOWHERE), arch, ledger }
    }

    /// Its VM. Set when that is complete, before the vCPU is started.
    pub fn belongs_to(&self, vm: &'static Vm) {
        self.vm.set(vm);
    }

    /// Its VM.
    #[inline(always)]
    pub fn vm(&self) -> &'static Vm {
        // SAFETY: vCPUs are reached only through their VM, or by running, which both come after `belongs_to`.
        unsafe { self.vm.assume_set() }
    }

    /// Writes to the ledger. Only for the CPU that this vCPU is loaded on, outside of the exit path proper.
    pub fn with_ledger<T>(&self, write: impl FnOnce(&mut Ledger) -> T) -> T {
        // SAFETY: one CPU at a time has a vCPU loaded, its handlers run one after the other, and `write` has no way to come back here.
        write(unsafe { &mut *self.ledger })
    }

    /// Exits in the ledger: those until the vCPU was last left.
    pub fn exits_taken(&self) -> u64 {
        // SAFETY: as for `copy_ledger`.
        unsafe { (&raw const (*self.ledger).taken).read_volatile() }
    }

    /// Copies the ledger, as far as it is written: exact once the vCPU is off. While it runs, each number is whole, and of some moment.
    pub fn copy_ledger(&self, to: &mut Ledger) {
        const WORDS: usize = size_of::<Ledger>() / size_of::<u64>();
        const _: () = assert!(WORDS * size_of::<u64>() == size_of::<Ledger>());
        let (from, to): (*const u64, *mut u64) = (self.ledger.cast(), (&raw mut *to).cast());
        for word in 0..WORDS {
            // SAFETY: a ledger is an array of such words, and any numbers make one. The CPU that writes them meanwhile writes each at once, and
            // no reference is made to them here.
            unsafe { to.add(word).write(from.add(word).read_volatile()) };
        }
    }
}
