//! KVM's paravirtual clock (Linux, Documentation/virt/kvm/x86/msr.rst). Linux takes the TSC's frequency from CPUID on
//! processors of Intel's only; on others it would measure it, against timers that a VM without legacy devices does not have.

use core::sync::atomic::{AtomicU64, Ordering};

use stile_apic::GeneralProtection;
use stile_svm::clock::Scale;

use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vm::shared;
use crate::vm::Vcpu;
use crate::wall_clock;

/// MSR_KVM_WALL_CLOCK_NEW.
pub const WALL_CLOCK: u32 = 0x4b56_4d00;
/// MSR_KVM_SYSTEM_TIME_NEW.
pub const SYSTEM_TIME: u32 = 0x4b56_4d01;

/// In [`SYSTEM_TIME`]: the structure is wanted.
const ENABLED: u64 = 1;
/// In the structure: the clocks of all vCPUs agree.
const STABLE: u64 = 1;
/// An even version: the structure is complete.
const VERSION: u32 = 2;

/// A vCPU's register.
pub struct KvmClock(AtomicU64);

impl KvmClock {
    /// As after reset: off.
    pub const fn new() -> KvmClock {
        KvmClock(AtomicU64::new(0))
    }

    /// Resets the register.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The register's value.
    pub fn register(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the register to its value in a snapshot. The structure was saved with the guest's memory, and does not change: its
    /// frequency is that of the machine where the guest started, as Linux keeps it, too.
    pub fn restore(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Reads a register of a vCPU; `None` if it is not one of these.
pub fn read(vcpu: &Vcpu, register: u32) -> Option<u64> {
    match register {
        SYSTEM_TIME => Some(vcpu.arch.msrs.kvm_clock.register()),
        // Its value has no meaning after it was written.
        WALL_CLOCK => Some(0),
        _ => None,
    }
}

/// Writes one.
pub fn write(vcpu: &'static Vcpu, register: u32, value: u64) -> Option<Result<(), GeneralProtection>> {
    match register {
        SYSTEM_TIME => {
            if value & ENABLED != 0 && !show_time(vcpu, value & !ENABLED) {
                return Some(Err(GeneralProtection));
            }
            vcpu.arch.msrs.kvm_clock.0.store(value, Ordering::Relaxed);
        }
        WALL_CLOCK if show_wall_clock(vcpu, value) => {}
        WALL_CLOCK => return Some(Err(GeneralProtection)),
        _ => return None,
    }
    Some(Ok(()))
}

/// Writes words to a structure in the guest's RAM, the first of them last. False if it is not there, or crosses a page.
fn show<const N: usize>(vcpu: &'static Vcpu, address: u64, words: [u32; N]) -> bool {
    const PAGE: u64 = 4096;
    if address & 3 != 0 || address % PAGE + 4 * N as u64 > PAGE {
        return false;
    }
    let Some(structure) = Ram(vcpu.vm()).pointer_to_write::<u32>(address) else { return false };
    for (at, word) in words.into_iter().enumerate().rev() {
        // SAFETY: guest RAM that no reference covers, and the structure does not cross its page.
        unsafe { shared::store(structure.add(at), word) };
    }
    true
}

/// Writes the structure of the system time: it starts with the guest's TSC, so that it never changes.
fn show_time(vcpu: &'static Vcpu, address: u64) -> bool {
    let Scale { multiplier, shift } = Scale::of(timer::frequency());
    let last = u32::from(shift as u8) | (STABLE as u32) << 8;
    show(vcpu, address, [VERSION, 0, 0, 0, 0, 0, multiplier, last])
}

/// Writes the structure of the wall clock: the time of day at which the system time was zero.
fn show_wall_clock(vcpu: &'static Vcpu, address: u64) -> bool {
    let ticks = timer::now().wrapping_add(vcpu.arch.msrs.tsc_offset());
    let start = wall_clock::nanoseconds_at(timer::now()).saturating_sub(Scale::of(timer::frequency()).nanoseconds(ticks));
    show(vcpu, address, [VERSION, (start / 1_000_000_000) as u32, (start % 1_000_000_000) as u32])
}
