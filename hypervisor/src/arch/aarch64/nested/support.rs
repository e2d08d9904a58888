//! Support for VMs with an EL2: machine requirements, and per-VM state.

use stile_nested_arm::forward::Masks;

use super::mode;
use super::nv_mode::NvMode;
use super::shadows::Shadows;
use crate::arch::aarch64::host::features;

/// Additional state of a VM with an EL2.
pub struct Shared {
    /// Shadow second stages of its VMs.
    pub shadows: Shadows,
    /// Trap controls that its virtual processor implements.
    pub masks: Masks,
}

/// Whether L1 can clear HCR_EL2.E2H.
pub fn may_clear_e2h(nested: stile_blob::Nested) -> bool {
    nested != stile_blob::Nested::Off && mode::may_be_clear(NvMode::new(nested))
}

/// Checks whether this machine can run vCPUs with an EL2.
///
/// # Errors
/// A description of what is missing.
pub fn check(nv_mode: stile_blob::Nested) -> Result<(), &'static str> {
    let have = features::get();
    match nv_mode {
        stile_blob::Nested::Off => Ok(()),
        _ if !have.vhe => Err("a VM with an EL2 of its own needs a CPU with VHE"),
        stile_blob::Nested::Nv2 if have.nv < 2 => Err("nested = \"nv2\" needs a CPU with FEAT_NV2"),
        stile_blob::Nested::Nv if have.nv < 1 => Err("nested = \"nv\" needs a CPU with FEAT_NV"),
        stile_blob::Nested::Enlightened => Err("nested = \"enlightened\" is for x86-64"),
        stile_blob::Nested::Nv | stile_blob::Nested::Nv2 => Ok(()),
    }
}
