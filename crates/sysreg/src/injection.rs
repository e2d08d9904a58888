//! Injection of synchronous exceptions into EL1: Arm ARM pseudocode, `AArch64.TakeException`.
//!
//! The caller writes `ELR_EL1` (the vCPU's program counter), `SPSR_EL1` (its old state), `ESR_EL1`
//! and, for an abort, `FAR_EL1`; then the vCPU continues at [`El1Entry::pc`] in
//! [`El1Entry::pstate`].

use crate::syndrome::Origin;

/// Bits of `SPSR_EL2`. Bits preserved across the exception have the same positions in both
/// execution states.
mod pstate {
    /// Execution state and exception level.
    pub const M: u64 = 0x1f;
    pub const M_AARCH32: u64 = 0x10;
    pub const M_EL0T: u64 = 0b0000;
    pub const M_EL1T: u64 = 0b0100;
    pub const M_EL1H: u64 = 0b0101;
    pub const DAIF: u64 = 0xf << 6;
    pub const SSBS: u64 = 1 << 12;
    pub const PAN: u64 = 1 << 22;
    pub const DIT: u64 = 1 << 24;
    pub const NZCV: u64 = 0xf << 28;
}

/// Bits of `SCTLR_EL1`.
mod sctlr {
    /// An exception preserves `PSTATE.PAN`. RES1 without FEAT_PAN.
    pub const SPAN: u64 = 1 << 23;
    /// The value of `PSTATE.SSBS` after an exception. RES0 without FEAT_SSBS.
    pub const DSSBS: u64 = 1 << 44;
}

/// The state of a vCPU that takes a synchronous exception to EL1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct El1Entry {
    /// The program counter, for `ELR_EL2`.
    pub pc: u64,
    /// The processor state, for `SPSR_EL2`.
    pub pstate: u64,
}

impl El1Entry {
    /// Computes the entry of a vCPU in state `spsr` (its `SPSR_EL2`, of EL0 or EL1) with these values
    /// of `SCTLR_EL1` and `VBAR_EL1`.
    pub const fn synchronous(spsr: u64, sctlr_el1: u64, vbar_el1: u64) -> Self {
        let mut pstate = spsr & (pstate::NZCV | pstate::DIT | pstate::PAN);
        if sctlr_el1 & sctlr::SPAN == 0 {
            pstate |= pstate::PAN;
        }
        if sctlr_el1 & sctlr::DSSBS != 0 {
            pstate |= pstate::SSBS;
        }
        Self { pc: (vbar_el1 & !0x7ff) + vector_offset(spsr), pstate: pstate | pstate::DAIF | pstate::M_EL1H }
    }
}

/// Returns the offset of the synchronous exception from state `spsr` in EL1's vector table: Arm ARM,
/// "Exception vectors".
pub const fn vector_offset(spsr: u64) -> u64 {
    match spsr & pstate::M {
        pstate::M_EL1T => 0x000,
        mode if mode & pstate::M_AARCH32 != 0 => 0x600,
        pstate::M_EL0T => 0x400,
        _ => 0x200,
    }
}

/// Returns the origin of an abort in state `spsr`, as EL1 sees it.
pub const fn origin(spsr: u64) -> Origin {
    match spsr & pstate::M {
        mode if mode & pstate::M_AARCH32 != 0 => Origin::LowerEl,
        pstate::M_EL0T => Origin::LowerEl,
        _ => Origin::SameEl,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VBAR: u64 = 0xffff_8000_1001_0800;

    #[test]
    fn vectors_by_origin() {
        let cases = [
            (0b0_0100, 0x000, Origin::SameEl),
            (0b0_0101, 0x200, Origin::SameEl),
            (0b0_0000, 0x400, Origin::LowerEl),
            (0b1_0000, 0x600, Origin::LowerEl),
        ];
        for (spsr, offset, expected) in cases {
            let entry = El1Entry::synchronous(spsr, 0, VBAR);
            assert_eq!(entry.pc, VBAR + offset);
            assert_eq!(origin(spsr), expected);
        }
    }

    #[test]
    fn a_kernel_with_pan_enters_with_it_set() {
        // Linux: SPAN 0, DSSBS 0. From EL0 with Z, BTYPE and SS set.
        let spsr = 1 << 30 | 0b11 << 10 | 1 << 21;
        let entry = El1Entry::synchronous(spsr, 0, VBAR);
        assert_eq!(entry.pstate, 1 << 30 | 1 << 22 | 0x3c5);
    }

    #[test]
    fn span_keeps_pan_and_dssbs_sets_ssbs() {
        let sctlr = 1 << 23 | 1 << 44;
        assert_eq!(El1Entry::synchronous(0, sctlr, 0).pstate, 1 << 12 | 0x3c5);
        let pan = 1 << 22;
        let entry = El1Entry::synchronous(pan | 5, sctlr, 0);
        assert_eq!(entry.pstate, pan | 1 << 12 | 0x3c5);
    }

    #[test]
    fn aarch32_state_does_not_leak() {
        let all_but_mode = 0xffff_ffff_ffff_ffe0;
        let entry = El1Entry::synchronous(all_but_mode | 0x10, 1 << 23, 0);
        assert_eq!(entry.pstate, 0xf140_03c5);
    }
}
