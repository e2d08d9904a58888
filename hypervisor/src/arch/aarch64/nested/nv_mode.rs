//! How accesses of virtual EL2 reach its registers. The registers are in the same places in both modes.

use stile_nested::vncr;

use super::{Regime, exits};
use crate::arch::aarch64::exit::Outcome;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::read_sysreg;

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

/// All synchronous exits without FEAT_NV2. All general registers are in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_trapping(cpu: &mut Cpu, esr: u64) -> Outcome {
    if let Some(nested) = super::of(cpu.vcpu())
        && nested.regime == Regime::El2
    {
        // FEAT_NV traps no access to it, so that virtual EL2's and its guest's are one, in the register.
        nested.page.set(vncr::MDSCR_EL1, read_sysreg!(MDSCR_EL1));
    }
    exits::handle_nested(cpu, esr)
}
