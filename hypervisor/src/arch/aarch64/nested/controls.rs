//! Trap controls of a vCPU that has an EL2 of its own, as far as they do not depend on what L1 writes.

use super::nv_mode::NvMode;
use crate::arch::aarch64::host::features;
use crate::arch::aarch64::vcpu::traps;

/// HCR_EL2.RW.
pub const RW: u64 = 1 << 31;
/// HCR_EL2.E2H.
pub const E2H: u64 = 1 << 34;
/// HCR_EL2.NV.
pub const NV: u64 = 1 << 42;
/// HCR_EL2.AT: traps AT S1E*.
pub const AT: u64 = 1 << 44;
/// HCR_EL2.NV1: the names of EL1's registers are those of the guest's, which are in the page.
pub const NV1: u64 = 1 << 43;
/// HCR_EL2.NV2.
const NV2: u64 = 1 << 45;
/// HCR_EL2.TTLB: traps TLB maintenance of EL1.
const TTLB: u64 = 1 << 25;

/// HCR_EL2 bits of virtual EL2 beyond other vCPUs'. TTLB and AT: instructions for EL1 mean the guest's translations while L1 has
/// HCR_EL2.TGE clear, and with FEAT_NV2 it clears that in memory, unseen.
pub const fn virtual_el2(nv_mode: NvMode) -> u64 {
    NV | TTLB | AT | if nv_mode.redirects() { NV2 } else { 0 }
}

/// CNTHCTL_EL2 with E2H: EL1PCTEN, EL1PTEN.
pub const EL1_TIMERS: u64 = 0b11 << 10;

/// Stile's controls of every vCPU: constant, so that a switch need not compute them again.
#[derive(Clone, Copy)]
pub struct Base {
    /// HCR_EL2.
    pub hcr: u64,
    /// CPTR_EL2.
    pub cptr: u64,
    /// MDCR_EL2.
    pub mdcr: u64,
}

impl Base {
    /// By what the CPUs have.
    pub fn new() -> Base {
        let have = features::get();
        Base { hcr: traps::hcr(have), cptr: traps::cptr(have), mdcr: traps::mdcr(have) }
    }
}
