//! The two ways in which accesses of virtual EL2 reach its registers. The registers are in the same places in both.

use stile_nested::vncr;

use super::{Regime, exits};
use crate::arch::aarch64::exit::Outcome;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::sysreg::read_sysreg;

/// A way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// FEAT_NV2: most accesses are redirected.
    Redirect,
    /// FEAT_NV alone: each one traps.
    Trap,
}

impl Way {
    /// The way that a VM with an EL2 is to have.
    pub fn new(nested: stile_blob::Nested) -> Way {
        if nested == stile_blob::Nested::Nv { Way::Trap } else { Way::Redirect }
    }

    /// Whether it is that of FEAT_NV2.
    #[inline(always)]
    pub const fn redirects(self) -> bool {
        matches!(self, Way::Redirect)
    }
}

/// All synchronous exits without FEAT_NV2. All general registers are in the frame.
#[unsafe(no_mangle)]
extern "C" fn handle_trapping(cpu: &mut Cpu, esr: u64) -> Outcome {
    if let Some(nested) = super::of(cpu.vcpu())
        && nested.regime == Regime::El2
    {
        // FEAT_NV traps no access to it, so that virtual EL2's and its guest's are one, in the register.
        nested.page.set(vncr::MDSCR_EL1, read_sysreg!("mdscr_el1"));
    }
    exits::handle_nested(cpu, esr)
}
