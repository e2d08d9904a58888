//! The stolen time of a vCPU in its guest's memory, where MSR_KVM_STEAL_TIME names it (Linux, Documentation/virt/kvm/x86/msr.rst),
//! and whether the vCPU has lost its CPU: guests do not wait for a lock whose owner has.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vm::shared;
use crate::vm::Vm;

/// In the register: the structure is kept up.
const ENABLED: u64 = 1;
/// The structure has 64 bytes, at an address of as many.
const ALIGNED: u64 = !63;
/// Offsets in the structure: the stolen time in nanoseconds, 64 bits; and a version of 32 bits, which is odd while that is written.
const NANOSECONDS: usize = 0;
const VERSION: usize = 8;
/// Offset of a byte: KVM_VCPU_PREEMPTED, bit 0, or 0.
const PREEMPTED: usize = 16;

/// A vCPU's register.
pub struct StolenTime {
    register: AtomicU64,
    /// The guest's structure says that the vCPU has lost its CPU.
    preempted: AtomicBool,
}

impl StolenTime {
    /// As after reset: off.
    pub const fn new() -> StolenTime {
        StolenTime { register: AtomicU64::new(0), preempted: AtomicBool::new(false) }
    }

    /// Back to that.
    pub fn reset(&self) {
        self.register.store(0, Ordering::Relaxed);
        self.preempted.store(false, Ordering::Relaxed);
    }

    /// Imports the register of a saved vCPU, whose structure may say that it has lost its CPU.
    pub fn restore(&self, value: u64) {
        self.preempted.store(self.write(value) && value & ENABLED != 0, Ordering::Relaxed);
    }

    /// The register's value.
    pub fn register(&self) -> u64 {
        self.register.load(Ordering::Relaxed)
    }

    /// Writes the register. False if it does not take the value.
    pub fn write(&self, value: u64) -> bool {
        let valid = value & !(ALIGNED | ENABLED) == 0;
        if valid {
            self.register.store(value, Ordering::Relaxed);
        }
        valid
    }

    /// The structure, if the guest wants it written. One outside of RAM is not, nor one in RAM that the guest has not
    /// touched: a lock of the schedule is held, and filling such RAM takes time, in which other CPUs may hold its block.
    fn structure(&self, vm: &'static Vm) -> Option<*mut u8> {
        let register = self.register();
        if register & ENABLED == 0 || !vm.is_mapped(register & ALIGNED) {
            return None;
        }
        // Instructions that were decoded from the structure itself are not forgotten: the guest has no reason to run it.
        Ram(vm).pointer::<u8>(register & ALIGNED)
    }

    /// Tells the guest that the vCPU, which is ready to run, has lost its CPU.
    #[inline]
    pub fn lose_cpu(&self, vm: &'static Vm) {
        if self.register() & ENABLED != 0 {
            self.set_preempted(vm, true);
        }
    }

    /// Tells the guest that the vCPU has a CPU, if it was told that it has none.
    #[inline]
    pub fn get_cpu(&self, vm: &'static Vm) {
        if self.preempted.load(Ordering::Relaxed) {
            self.set_preempted(vm, false);
        }
    }

    #[cold]
    fn set_preempted(&self, vm: &'static Vm, preempted: bool) {
        let Some(structure) = self.structure(vm) else { return };
        self.preempted.store(preempted, Ordering::Relaxed);
        // SAFETY: guest memory that no reference covers, and the structure does not cross its page.
        unsafe { shared::store(structure.add(PREEMPTED), u8::from(preempted)) };
    }

    /// Writes the stolen time into the guest's memory, if it wants that.
    pub fn show(&self, vm: &'static Vm, nanoseconds: u64) {
        let Some(structure) = self.structure(vm) else { return };
        // SAFETY: guest memory that no reference covers, and the structure does not cross its page.
        unsafe {
            let version = structure.add(VERSION).cast::<u32>();
            let before = shared::load(version) | 1;
            shared::store(version, before);
            shared::store(structure.add(NANOSECONDS).cast::<u64>(), nanoseconds);
            shared::store(version, before.wrapping_add(1));
        }
    }
}
