//! Whose registers a vCPU with an EL2 has as EL1's.

use super::controls::NV;
use crate::arch::aarch64::host::sysreg::read_sysreg;
use crate::vm::Vcpu;

/// Which registers the vCPU's exception level 1 has on the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regime {
    /// Those of virtual EL2, which is its own EL0's kernel, too, while HCR_EL2.TGE is set.
    El2,
    /// Those of the guest: L2, or what L1 runs at EL1 without a second stage.
    Guest,
}

/// Whether EL1 of the loaded vCPU is virtual EL2 now.
#[inline(always)]
pub fn at_virtual_el2() -> bool {
    read_sysreg!(HCR_EL2) & NV != 0
}

/// Whether the loaded vCPU has an EL2 and runs a guest of its own now.
pub fn runs_guest(vcpu: &Vcpu) -> bool {
    vcpu.arch.has_el2 && !at_virtual_el2()
}
