//! The registers by which L1 says what traps.

use super::{Masks, trap};
use crate::vncr::{self, Page};

/// A register with traps in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// HCR_EL2.
    Hcr,
    /// HCRX_EL2.
    Hcrx,
    /// CPTR_EL2, in the layout that it has with HCR_EL2.E2H set.
    Cptr,
    /// MDCR_EL2.
    Mdcr,
    /// CNTHCTL_EL2, in the layout that it has with HCR_EL2.E2H set.
    Cnthctl,
    /// HSTR_EL2.
    Hstr,
    /// HFGRTR_EL2.
    Hfgrtr,
    /// HFGWTR_EL2.
    Hfgwtr,
    /// HFGITR_EL2.
    Hfgitr,
    /// HDFGRTR_EL2.
    Hdfgrtr,
    /// HDFGWTR_EL2.
    Hdfgwtr,
    /// ICH_HCR_EL2.
    IchHcr,
}

impl Control {
    /// How many there are.
    pub const COUNT: usize = Self::IchHcr as usize + 1;
}

/// L1's trap controls.
pub trait Controls {
    /// The value in effect: a bit that L1's processor doesn't have reads as if nothing were trapped by it.
    fn get(&self, control: Control) -> u64;
}

/// L1's trap controls where they live: most in the page, three beside it, because their accesses trap (Arm ARM,
/// "Enhanced support for nested virtualization": they aren't among the registers that are redirected).
#[derive(Clone, Copy, Debug)]
pub struct Virtual<'a> {
    /// The vCPU's page.
    pub page: &'a Page,
    /// What L1's processor has.
    pub masks: &'a Masks,
    /// CPTR_EL2 as L1 wrote it.
    pub cptr: u64,
    /// MDCR_EL2 as L1 wrote it.
    pub mdcr: u64,
    /// CNTHCTL_EL2 as L1 wrote it.
    pub cnthctl: u64,
}

impl Controls for Virtual<'_> {
    #[inline]
    fn get(&self, control: Control) -> u64 {
        let e2h = || self.masks.hcr(self.page.get(vncr::HCR_EL2)) & trap::HCR_E2H != 0;
        let written = match control {
            Control::Hcr => self.page.get(vncr::HCR_EL2),
            Control::Hcrx => self.page.get(vncr::HCRX_EL2),
            Control::Cptr if e2h() => self.cptr,
            Control::Cptr => cptr_as_with_e2h(self.cptr),
            Control::Mdcr => self.mdcr,
            Control::Cnthctl if e2h() => self.cnthctl,
            Control::Cnthctl => cnthctl_as_with_e2h(self.cnthctl),
            Control::Hstr => self.page.get(vncr::HSTR_EL2),
            Control::Hfgrtr => self.page.get(vncr::HFGRTR_EL2),
            Control::Hfgwtr => self.page.get(vncr::HFGWTR_EL2),
            Control::Hfgitr => self.page.get(vncr::HFGITR_EL2),
            Control::Hdfgrtr => self.page.get(vncr::HDFGRTR_EL2),
            Control::Hdfgwtr => self.page.get(vncr::HDFGWTR_EL2),
            Control::IchHcr => self.page.get(vncr::ICH_HCR_EL2),
        };
        self.masks.apply(control, written)
    }
}

/// CPTR_EL2 of a hypervisor with HCR_EL2.E2H clear, as one with it set would write the same. Arm ARM, "CPTR_EL2,
/// Architectural Feature Trap Register (EL2)", which has both layouts.
pub const fn cptr_as_with_e2h(cptr: u64) -> u64 {
    const TCPAC_TAM: u64 = 1 << 31 | 1 << 30;
    const TTA: u32 = 20;
    // Bits that trap when set, and the fields of two bits that don't trap when 0b11.
    const TSM_SMEN: (u32, u32) = (12, 24);
    const TFP_FPEN: (u32, u32) = (10, 20);
    const TZ_ZEN: (u32, u32) = (8, 16);
    cptr & TCPAC_TAM | (cptr >> TTA & 1) << 28 | enabled(cptr, TSM_SMEN) | enabled(cptr, TFP_FPEN) | enabled(cptr, TZ_ZEN)
}

const fn enabled(cptr: u64, (trap, enable): (u32, u32)) -> u64 {
    if cptr >> trap & 1 == 0 { 0b11 << enable } else { 0 }
}

/// CNTHCTL_EL2 of a hypervisor with HCR_EL2.E2H clear, as one with it set would write the same. Arm ARM,
/// "CNTHCTL_EL2, Counter-timer Hypervisor Control Register": EL1PCTEN and EL1PCEN (there EL1PTEN) lie elsewhere, and
/// EL0 is not told apart from EL1.
pub const fn cnthctl_as_with_e2h(cnthctl: u64) -> u64 {
    const EL1: u64 = 0b11;
    /// What FEAT_ECV adds has the same place in both: EL1TVT and on.
    const COMMON: u64 = 0x1f << 13;
    cnthctl & COMMON | (cnthctl & EL1) << 10
}
