//! HCR_EL2.E2H of L1, and the state that it determines.

use super::controls::{E2H, EL1_TIMERS, NV1, virtual_el2};
use super::nv_mode::NvMode;
use crate::arch::aarch64::exit::vectors::Vectors;
use crate::arch::aarch64::host::features;

/// State that depends on HCR_EL2.E2H.
#[derive(Clone, Copy)]
pub struct Mode {
    /// The bit, in its position.
    pub e2h: u64,
    /// Additional HCR_EL2 bits of the CPU at virtual EL2.
    pub traps: u64,
    /// CNTHCTL_EL2 of the CPU at virtual EL2.
    pub cnthctl: u64,
    /// Registers that a switch moves in addition to the table of [`registers`](super::registers): bits of [`extra`].
    /// One byte, so that a switch tests all with one load.
    pub extra: u8,
}

/// Registers that only some vCPUs switch.
pub mod extra {
    /// CNTKCTL_EL1, which virtual EL2 has for itself while E2H is set.
    pub const CNTKCTL: u8 = 1 << 0;
    /// ZCR_EL1, with FEAT_SVE.
    pub const ZCR: u8 = 1 << 1;
    /// MDSCR_EL1, whose copy in memory virtual EL2 accesses: with FEAT_NV2.
    pub const MDSCR: u8 = 1 << 2;
}

impl Mode {
    /// E2H set.
    pub fn set(nv_mode: NvMode) -> Self {
        Self { e2h: E2H, traps: virtual_el2(nv_mode), cnthctl: EL1_TIMERS, extra: extra::CNTKCTL | Self::extra(nv_mode) }
    }

    /// E2H clear.
    pub fn clear() -> Self {
        /// EL1PCTEN; EL1PTEN is 0: EL0's names of the timers refer to the guest's, while the CPU has virtual EL2's.
        const COUNTER: u64 = 1 << 10;
        /// EL1TVT, EL1TVCT: traps of the virtual timer, where CNTVOFF_EL2 would also apply to virtual EL2.
        const VIRTUAL: u64 = 0b11 << 13;
        let cnthctl = COUNTER | if features::get().ecv { VIRTUAL } else { 0 };
        Self { e2h: 0, traps: virtual_el2(NvMode::Redirect) | NV1, cnthctl, extra: Self::extra(NvMode::Redirect) }
    }

    fn extra(nv_mode: NvMode) -> u8 {
        let zcr = if features::get().sve { extra::ZCR } else { 0 };
        zcr | if nv_mode.redirects() { extra::MDSCR } else { 0 }
    }

    /// Reset state: clear, if supported.
    pub fn at_reset(nv_mode: NvMode) -> Self {
        if may_be_clear(nv_mode) { Self::clear() } else { Self::set(nv_mode) }
    }

    /// Whether the bit is set.
    pub fn has_e2h(&self) -> bool {
        self.e2h != 0
    }

    /// VBAR_EL2 of the CPU.
    pub fn vectors(&self, nv_mode: NvMode) -> u64 {
        let vectors = match (self.has_e2h(), nv_mode.redirects()) {
            (true, true) => Vectors::Redirected,
            (true, false) => Vectors::Trapping,
            (false, _) => Vectors::Plain,
        };
        vectors.base()
    }
}

/// Whether L1 can clear HCR_EL2.E2H (its ID_AA64MMFR4_EL1.E2H0). Requires NV1, and the page, which has its guest's
/// registers.
pub fn may_be_clear(nv_mode: NvMode) -> bool {
    features::get().nv1 && nv_mode.redirects()
}
