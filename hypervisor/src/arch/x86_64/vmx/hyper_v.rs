//! Hyper-V's synthetic MSRs, in a VM whose hypervisor (L1) may use enlightened VMCSs (crate `nested-vmx`, `hyper_v`).

use core::sync::atomic::{AtomicU64, Ordering};

use stile_apic::GeneralProtection;
use stile_nested_vmx::hyper_v::{ENABLED, HYPERCALL_PAGE, Hypercall, msr, write_hypercall};

use crate::arch::x86_64::vm::guest_memory::Ram;
use crate::arch::x86_64::vm::shared;
use crate::vm::{Vcpu, Vm};

/// Registers that a VM's vCPUs share. Each is a value of its own: no order of accesses matters.
pub struct Partition {
    guest_os: AtomicU64,
    hypercall: AtomicU64,
    tsc_invariant: AtomicU64,
}

impl Partition {
    /// Reset state.
    pub const fn new() -> Partition {
        Partition { guest_os: AtomicU64::new(0), hypercall: AtomicU64::new(0), tsc_invariant: AtomicU64::new(0) }
    }

    /// Resets the registers.
    pub fn reset(&self) {
        [&self.guest_os, &self.hypercall, &self.tsc_invariant].into_iter().for_each(|register| register.store(0, Ordering::Relaxed));
    }

    /// Reads a register of a vCPU. `None` if there is none of that number.
    pub fn read(&self, vcpu: &Vcpu, number: u32) -> Option<u64> {
        Some(match number {
            msr::GUEST_OS_ID => self.guest_os.load(Ordering::Relaxed),
            msr::HYPERCALL => self.hypercall.load(Ordering::Relaxed),
            msr::VP_INDEX => vcpu.arch.index as u64,
            msr::VP_ASSIST_PAGE => vcpu.arch.msrs.assist.register(),
            msr::TSC_INVARIANT_CONTROL => self.tsc_invariant.load(Ordering::Relaxed),
            _ => return None,
        })
    }

    /// Writes a register of a vCPU.
    ///
    /// # Errors
    /// The register does not exist, is read-only, or the page is not in RAM.
    pub fn write(&self, vcpu: &Vcpu, number: u32, value: u64) -> Result<(), GeneralProtection> {
        const EXPOSED: u64 = 1 << 0;
        match number {
            msr::GUEST_OS_ID => {
                self.guest_os.store(value, Ordering::Relaxed);
                if value == 0 {
                    self.hypercall.fetch_and(!ENABLED, Ordering::Relaxed);
                }
            }
            msr::HYPERCALL => match write_hypercall(self.hypercall.load(Ordering::Relaxed), value, self.guest_os.load(Ordering::Relaxed)) {
                Hypercall::Ignored => {}
                Hypercall::Set(value) => self.hypercall.store(value, Ordering::Relaxed),
                Hypercall::Enabled(page, value) => {
                    let code = Ram(vcpu.vm()).pointer_to_write::<u64>(page).ok_or(GeneralProtection)?;
                    // SAFETY: guest RAM, to which no reference exists.
                    unsafe { shared::store(code, HYPERCALL_PAGE) };
                    self.hypercall.store(value, Ordering::Relaxed);
                }
            },
            msr::VP_ASSIST_PAGE => vcpu.arch.msrs.assist.write(vcpu.vm(), value)?,
            msr::TSC_INVARIANT_CONTROL if value & !EXPOSED == 0 => self.tsc_invariant.store(value, Ordering::Relaxed),
            _ => return Err(GeneralProtection),
        }
        Ok(())
    }
}

/// The VP assist page of a vCPU, by which L1 names its enlightened VMCS. Written by the CPU on which the vCPU is loaded.
pub struct AssistPage {
    register: AtomicU64,
    /// Physical address while enabled; otherwise 0, where no VM has RAM.
    page: AtomicU64,
}

impl AssistPage {
    /// Reset state.
    pub const fn new() -> AssistPage {
        AssistPage { register: AtomicU64::new(0), page: AtomicU64::new(0) }
    }

    /// Resets the register.
    pub fn reset(&self) {
        self.register.store(0, Ordering::Relaxed);
        self.page.store(0, Ordering::Relaxed);
    }

    /// The register's value.
    fn register(&self) -> u64 {
        self.register.load(Ordering::Relaxed)
    }

    /// Writes the register. RAM stays in place while the VM exists.
    fn write(&self, vm: &'static Vm, value: u64) -> Result<(), GeneralProtection> {
        let gpa = value & !0xfff;
        let page = match value & ENABLED {
            0 => 0,
            _ => Ram(vm).pointer_to_write::<u64>(gpa).and_then(|_| vm.arch.physical(gpa)).ok_or(GeneralProtection)?,
        };
        self.register.store(value, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        Ok(())
    }

    /// Physical address of the page, if enabled.
    #[inline(always)]
    pub fn page(&self) -> Option<u64> {
        Some(self.page.load(Ordering::Relaxed)).filter(|&page| page != 0)
    }
}
