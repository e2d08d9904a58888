//! KVM's paravirtual EOI: a bit in guest memory at the address in MSR_KVM_PV_EOI_EN (Linux, Documentation/virt/kvm/x86/msr.rst;
//! `stile_apic::EoiBit`): an EOI without an exit.
//!
//! The bit's location is known to the APIC's model only between load and put of its vCPU. Load marks its page as written, and put takes
//! the bit back: no vCPU of a VM is loaded while its written pages are collected or its registers saved, so that copies of memory and of
//! the APIC agree.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_apic::EoiBit;

use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::vm::Vm;

/// MSR_KVM_PV_EOI_EN.
pub const REGISTER: u32 = 0x4b56_4d04;

/// In the register: the bit is in use.
const ENABLED: u64 = 1;
/// Mask of the address of the structure, which has four bytes and is aligned.
const ALIGNED: u64 = !3;

/// Location of the structure's first byte, whose bit 0 is the EOI bit. RAM stays in place while the VM exists.
#[derive(Clone, Copy)]
pub struct Bit(NonNull<u8>);

impl EoiBit for Bit {
    #[inline(always)]
    fn set(self) {
        // SAFETY: guest RAM that no reference covers, by `locate`. Other bits of the byte are reserved.
        unsafe { self.0.write_volatile(1) };
    }

    #[inline(always)]
    fn take(self) -> bool {
        // SAFETY: as of `set`. The vCPU whose bit it is does not run; a write of another one between both accesses harms its VM only.
        let was_set = unsafe { self.0.read_volatile() } & 1 != 0;
        if was_set {
            // SAFETY: as of `set`.
            unsafe { self.0.write_volatile(0) };
        }
        was_set
    }
}

/// Local APIC of a guest that may have a bit.
pub type LocalApic<'a> = stile_apic::LocalApic<'a, Bit>;

/// MSR_KVM_PV_EOI_EN of a vCPU.
pub struct ParavirtualEoi(AtomicU64);

impl ParavirtualEoi {
    /// As after reset: off.
    pub const fn new() -> ParavirtualEoi {
        ParavirtualEoi(AtomicU64::new(0))
    }

    /// Resets the register.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The register's value.
    pub fn register(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the register to its value in a snapshot. An invalid value turns the bit off.
    pub fn restore(&self, value: u64) {
        self.0.store(if is_valid(value) { value } else { 0 }, Ordering::Relaxed);
    }

    /// Writes the register. False if it does not take the value: reserved bits, or an address outside of RAM.
    pub fn write(&self, vm: &'static Vm, value: u64) -> bool {
        let valid = is_valid(value) && (value & ENABLED == 0 || Ram(vm).pointer::<u8>(value & ALIGNED).is_some());
        if valid {
            self.0.store(value, Ordering::Relaxed);
        }
        valid
    }

    /// Returns the bit, if the guest has enabled it, and marks its page as written. Returns `None` in RAM that the guest has not touched:
    /// a load of a vCPU has no time to fill it.
    #[inline(always)]
    pub fn bit(&self, vm: &'static Vm) -> Option<Bit> {
        let register = self.register();
        if register & ENABLED == 0 { None } else { locate(vm, register & ALIGNED) }
    }
}

#[cold]
fn locate(vm: &'static Vm, address: u64) -> Option<Bit> {
    if !vm.is_mapped(address) {
        return None;
    }
    // Stores to the structure do not invalidate decoded instructions: the guest has no reason to execute it.
    Ram(vm).pointer::<u8>(address).and_then(NonNull::new).map(Bit)
}

const fn is_valid(value: u64) -> bool {
    value & !(ALIGNED | ENABLED) == 0
}
