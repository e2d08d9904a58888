//! The regime of a vCPU with an EL2 whose registers are EL1's on the CPU.

use super::controls::NV;
use crate::arch::aarch64::host::sysreg::read_sysreg;
use crate::vm::Vcpu;

/// Regime of the vCPU's EL1 registers on the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Regime {
    /// Virtual EL2, which is also the kernel of its own EL0 while HCR_EL2.TGE is set.
    El2,
    /// The guest: L2, or software that L1 runs at EL1 without a second stage.
    Guest,
}

/// Whether EL1 of the loaded vCPU is virtual EL2 now.
#[inline(always)]
pub fn at_virtual_el2() -> bool {
    read_sysreg!(HCR_EL2) & NV != 0
}

/// Whether the loaded vCPU has an EL2 and runs its guest now.
pub fn runs_guest(vcpu: &Vcpu) -> bool {
    vcpu.arch.has_el2 && !at_virtual_el2()
}
