//! Redirection of virtual EL2's register accesses. The registers' homes are the same in both modes.

/// Whether FEAT_NV2 redirects accesses of virtual EL2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NvMode {
    /// FEAT_NV2: most accesses are redirected.
    Redirect,
    /// FEAT_NV alone: each one traps.
    Trap,
}

impl NvMode {
    /// The mode of a VM with an EL2.
    pub fn new(nested: stile_blob::Nested) -> NvMode {
        if nested == stile_blob::Nested::Nv { NvMode::Trap } else { NvMode::Redirect }
    }

    /// Whether it is that of FEAT_NV2.
    #[inline(always)]
    pub const fn redirects(self) -> bool {
        matches!(self, NvMode::Redirect)
    }
}
