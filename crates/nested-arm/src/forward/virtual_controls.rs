//! L1's trap controls in its state.

use super::{Control, Controls, Masks};
use crate::vncr::{self, Page};

/// L1's trap controls in their storage: most in the page, three beside it, because accesses to them trap (Arm
/// ARM, "Enhanced support for nested virtualization": they are not among the redirected registers).
#[derive(Clone, Copy, Debug)]
pub struct Virtual<'a> {
    /// The vCPU's page.
    pub page: &'a Page,
    /// The controls that L1's processor implements.
    pub masks: &'a Masks,
    /// CPTR_EL2, in the layout with HCR_EL2.E2H set ([`layout::cptr`](crate::layout::cptr)).
    pub cptr: u64,
    /// MDCR_EL2 as L1 wrote it.
    pub mdcr: u64,
    /// CNTHCTL_EL2, in the layout with HCR_EL2.E2H set ([`layout::cnthctl`](crate::layout::cnthctl)).
    pub cnthctl: u64,
}

impl Controls for Virtual<'_> {
    #[inline]
    fn get(&self, control: Control) -> u64 {
        let written = match control {
            Control::Hcr => self.page.get(vncr::HCR_EL2),
            Control::Hcrx => self.page.get(vncr::HCRX_EL2),
            Control::Cptr => self.cptr,
            Control::Mdcr => self.mdcr,
            Control::Cnthctl => self.cnthctl,
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
