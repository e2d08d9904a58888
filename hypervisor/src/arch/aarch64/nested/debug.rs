//! MDSCR_EL1 at virtual EL2. FEAT_NV2 redirects its accesses to memory, but the CPU's register determines whether
//! virtual EL2 and its EL0 take debug exceptions.
//!
//! L1's exception returns copy memory to the register. In between the value matters only to a debugger of virtual
//! EL2's own code, which sets KDE; for it writes trap (HDFGWTR_EL2.MDSCR_EL1). But KVM writes the register twice per
//! exit of its guest: after a few guest entries without a write of KDE the trap is disabled. An exception return that
//! finds KDE in memory enables it again.

use stile_nested_arm::vncr;

use super::registers::Own;
use super::state::{Nested, Regime};
use super::write_trap::WriteTrap;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

/// MDSCR_EL1.KDE: debug exceptions from the exception level that they are taken to.
const KDE: u64 = 1 << 13;
/// MDCR_EL2.TDE: debug exceptions are taken to EL2.
const TDE: u64 = 1 << 8;
/// SPSR_EL2.D: debug exceptions are masked.
const MASKED: u64 = 1 << 9;

/// Whether virtual EL2, in the processor state `pstate`, takes debug exceptions from its own code.
pub fn is_enabled(pstate: u64) -> bool {
    pstate & MASKED == 0 && read_sysreg!(MDSCR_EL1) & KDE != 0
}

impl Nested {
    /// Enables or disables the trap of virtual EL2's writes of MDSCR_EL1: never without FEAT_FGT. Without FEAT_NV2
    /// the writes reach the register.
    #[cold]
    pub fn trap_mdscr_writes(&mut self, on: bool) {
        let on = on && features::get().fgt && self.nv_mode.redirects();
        self.debug = WriteTrap::new(on);
        self.lazy_traps.trap_mdscr_writes(on);
    }

    /// Handles a trapped write of virtual EL2.
    pub fn write_mdscr(&mut self, value: u64) {
        self.page.set(vncr::MDSCR_EL1, value);
        self.load_mdscr();
        let has_run = !core::mem::replace(&mut self.until_guest.wrote_mdscr, true);
        if self.debug.count(value & KDE != 0, has_run) {
            self.change_mdscr_trap(false);
        }
    }

    /// Copies L1's value from memory to the register, before virtual EL2 or its EL0 continues.
    pub fn load_mdscr(&mut self) {
        let value = self.page.get(vncr::MDSCR_EL1);
        // Debug exceptions of EL2's own code are taken to EL2 if HCR_EL2.TGE or MDCR_EL2.TDE is set (Arm ARM pseudocode, DebugTargetFrom). A
        // hypervisor that sets E2H has TGE set before it unmasks them.
        let is_target = self.mode.has_e2h() || self.own[Own::Mdcr as usize] & TDE != 0;
        write_sysreg!(MDSCR_EL1, if is_target { value } else { value & !KDE });
        if value & KDE != 0 && !self.debug.is_on() {
            self.change_mdscr_trap(true);
        }
    }

    /// Enables or disables the trap while virtual EL2 runs.
    #[cold]
    fn change_mdscr_trap(&mut self, on: bool) {
        debug_assert!(self.regime == Regime::El2);
        self.trap_mdscr_writes(on);
        self.lazy_traps.load_own();
    }
}
