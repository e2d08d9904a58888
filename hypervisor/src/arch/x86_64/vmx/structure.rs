//! Control structure of a vCPU: its VMCS.

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::instructions::{rdmsr, wrmsr};
use crate::arch::x86_64::vmx::extension;
use crate::arch::x86_64::vmx::place::Place;
use crate::arch::x86_64::vmx::vmcs::{self, Field};

use super::host_state;
use crate::arch::x86_64::vcpu::cr4::CR4_OWNED;
use crate::arch::x86_64::vcpu::moved_msrs::MSRS;
use crate::arch::x86_64::vcpu::{cr0, inject};

/// The VMCS.
#[repr(C)]
pub struct Structure {
    /// Physical address.
    address: u64,
    /// The CPU whose block and tables are in its host state, plus 1; 0 if none.
    host: usize,
    vpid: u16,
}

impl Structure {
    /// Initializes it, with a zeroed page.
    pub fn setup(&mut self, vpid: u16, address: u64) {
        extension::write_revision(address, extension::features().revision);
        self.address = address;
        self.vpid = vpid;
        vmcs::clear(&self.address);
    }

    /// Physical address.
    pub fn address(&self) -> &u64 {
        &self.address
    }

    /// The next [`Structure::move_to`] invalidates translations. The vCPU is not loaded.
    pub fn forget_host(&mut self) {
        self.host = 0;
    }

    /// Makes it current.
    #[inline(always)]
    pub fn attach(&self) {
        vmcs::make_current(&self.address);
    }

    /// Clears it (VMCLEAR), so that another CPU can load it: the next entry is VMLAUNCH.
    #[inline(always)]
    pub fn detach(&self) {
        vmcs::clear(&self.address);
    }

    /// Prepares entries on this CPU. Returns whether the vCPU comes from another one, or this one's translations are
    /// invalid.
    #[inline(always)]
    pub fn move_to(&mut self, cpu: &Cpu, place: &Place) -> bool {
        let moves = self.host != cpu.index + 1;
        if moves {
            self.host = cpu.index + 1;
            host_state::write(cpu);
            // This CPU's translations for the VPID are stale.
            extension::invalidate_vpid(self.vpid.into());
            extension::invalidate_ept(place.ept);
        }
        moves
    }

    /// Loads MSRs that the VMCS does not have, if their values differ. The first `count` exist.
    #[inline(always)]
    pub fn load_msrs(&self, values: &[u64; MSRS.len()], count: usize, _fresh: bool) {
        for (&register, &value) in MSRS.iter().zip(values).take(count) {
            // SAFETY: the CPU has the register; the value was valid for this guest, or is zero. Stile does not use
            // the register.
            unsafe {
                if rdmsr(register) != value {
                    wrmsr(register, value);
                }
            }
        }
    }

    /// Reads those MSRs.
    #[inline(always)]
    pub fn read_msrs(&self, values: &mut [u64; MSRS.len()], count: usize) {
        for (&register, value) in MSRS.iter().zip(values).take(count) {
            // SAFETY: the list has only registers that CPUID enumerates on this CPU; reads have no side effects.
            *value = unsafe { rdmsr(register) };
        }
    }

    /// Writes all controls except those of the local APIC: see `virtual_apic.rs`.
    pub fn write_controls(&self, place: &Place) {
        let features = extension::features();
        let fields = [
            (Field::EXIT_CONTROLS, features.exit.into()),
            (Field::VPID, self.vpid.into()),
            (Field::EPT_POINTER, place.ept),
            (Field::IO_BITMAP_A, place.io_bitmaps[0]),
            (Field::IO_BITMAP_B, place.io_bitmaps[1]),
            // Guests handle their own exceptions, except those that can recur endlessly.
            (Field::EXCEPTION_BITMAP, inject::INTERCEPTED),
            (Field::PAGE_FAULT_MASK, 0),
            (Field::PAGE_FAULT_MATCH, 0),
            (Field::CR3_TARGETS, 0),
            (Field::EXIT_MSR_STORES, 0),
            (Field::EXIT_MSR_LOADS, 0),
            (Field::ENTRY_MSR_LOADS, 0),
            (Field::ENTRY_INTERRUPTION, 0),
            (Field::VMCS_LINK, u64::MAX),
            (Field::CR0_MASK, cr0::HELD),
            (Field::CR4_MASK, !CR4_OWNED),
        ];
        for (field, value) in fields {
            vmcs::write(field, value);
        }
    }
}
