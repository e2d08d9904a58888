//! A virtual CPU, as the parts that no architecture differs in see it.

use core::cell::UnsafeCell;
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
    ledger: UnsafeCell<&'static mut Ledger>,
}

// SAFETY: all but `ledger` is Sync, and that is reached only as `with_ledger` and `finished_ledger` say.
unsafe impl Sync for Vcpu {}

impl Vcpu {
    /// A vCPU that is off.
    pub fn new(id: VcpuId, arch: arch::Vcpu, ledger: &'static mut Ledger) -> Vcpu {
        ledger.reset();
        Vcpu { id, vm: Once::new(), runs_on: AtomicU32::new(NOWHERE), arch, ledger: UnsafeCell::new(ledger) }
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
        write(unsafe { &mut *self.ledger.get() })
    }

    /// The ledger of a vCPU, as far as it is written: exact once the vCPU is off.
    pub fn finished_ledger(&self) -> &Ledger {
        // SAFETY: numbers may be old or new while the vCPU runs, but are only read.
        unsafe { &*self.ledger.get() }
    }
}
