//! Trap controls of a vCPU with an EL2 that do not depend on L1's registers.

use super::nv_mode::NvMode;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::vcpu::traps;

/// HCR_EL2.HCD: HVC is undefined, at EL2 too.
pub const HCD: u64 = 1 << 29;
/// HCR_EL2.RW.
pub const RW: u64 = 1 << 31;
/// HCR_EL2.E2H.
pub const E2H: u64 = 1 << 34;
/// HCR_EL2.NV.
pub const NV: u64 = 1 << 42;
/// HCR_EL2.AT: traps AT S1E*.
pub const AT: u64 = 1 << 44;
/// HCR_EL2.NV1: EL1's register names refer to the guest's registers, in the page.
pub const NV1: u64 = 1 << 43;
/// HCR_EL2.NV2.
const NV2: u64 = 1 << 45;
/// HCR_EL2.TTLB: traps TLB maintenance of EL1.
const TTLB: u64 = 1 << 25;

/// Additional HCR_EL2 bits at virtual EL2. TTLB and AT: EL1's instructions refer to the guest's translations while
/// L1's HCR_EL2.TGE is clear, which with FEAT_NV2 it clears in memory without a trap.
pub const fn virtual_el2(nv_mode: NvMode) -> u64 {
    NV | TTLB | AT | if nv_mode.redirects() { NV2 } else { 0 }
}

/// CNTHCTL_EL2 with E2H: EL1PCTEN, EL1PTEN.
pub const EL1_TIMERS: u64 = 0b11 << 10;

/// Stile's controls of every vCPU: constant but for VSE, so that a switch does not recompute them.
#[derive(Clone, Copy)]
pub struct Base {
    /// HCR_EL2, with VSE if a virtual SError of L1's own is pending.
    pub hcr: u64,
    /// CPTR_EL2.
    pub cptr: u64,
    /// MDCR_EL2.
    pub mdcr: u64,
}

impl Base {
    /// By the CPU's features.
    pub fn new() -> Base {
        let have = features::get();
        Base { hcr: traps::hcr(have), cptr: traps::cptr(have), mdcr: traps::mdcr(have) }
    }
}
