//! The stolen time of a vCPU in its guest's memory, where MSR_KVM_STEAL_TIME names it (Linux, Documentation/virt/kvm/x86/msr.rst).

use core::sync::atomic::{AtomicU64, Ordering};

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

/// A vCPU's register.
pub struct StolenTime(AtomicU64);

impl StolenTime {
    /// As after reset: off.
    pub const fn new() -> StolenTime {
        StolenTime(AtomicU64::new(0))
    }

    /// Back to that.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The register's value.
    pub fn register(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Writes the register. False if it does not take the value.
    pub fn write(&self, value: u64) -> bool {
        let valid = value & !(ALIGNED | ENABLED) == 0;
        if valid {
            self.0.store(value, Ordering::Relaxed);
        }
        valid
    }

    /// Writes the stolen time into the guest's memory, if it wants that. A structure outside of RAM is not written, nor one
    /// in RAM that the guest has not touched: a lock of the schedule is held, and filling such RAM takes time, in which other
    /// CPUs may hold its block.
    pub fn show(&self, vm: &'static Vm, nanoseconds: u64) {
        let register = self.register();
        if register & ENABLED == 0 || !vm.is_mapped(register & ALIGNED) {
            return;
        }
        // Instructions that were decoded from the structure itself are not forgotten: the guest has no reason to run it.
        let Some(structure) = Ram(vm).pointer::<u8>(register & ALIGNED) else { return };
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
