//! L1's trap control registers.

/// A trap control register.
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
    /// Number of control registers.
    pub const COUNT: usize = Self::IchHcr as usize + 1;
}

/// L1's trap controls.
pub trait Controls {
    /// The effective value: a control that L1's processor doesn't implement reads as its non-trapping value.
    fn get(&self, control: Control) -> u64;
}
