//! The trap controls that L1's processor implements.

use super::trap::HCR_E2H;
use super::{Control, table};
use stile_sysreg::SysReg;
use stile_sysreg::id::SPACE;

/// The effective bits of the trap controls. Computed once per VM, from its ID registers.
///
/// A control of a feature that the VM lacks is RES0. If 0 would trap, it is taken as 1: the register it traps
/// doesn't exist, and is undefined for L2 as for any guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masks {
    keep: [u64; Control::COUNT],
    set: [u64; Control::COUNT],
}

/// A four-bit field of an ID register.
///
/// The register, and the field's lowest bit.
struct Field(SysReg, u32);

const PFR0_GIC: Field = Field(SysReg::new(3, 0, 0, 4, 0), 24);
const PFR0_RAS: Field = Field(SysReg::new(3, 0, 0, 4, 0), 28);
const PFR0_SVE: Field = Field(SysReg::new(3, 0, 0, 4, 0), 32);
const PFR0_AMU: Field = Field(SysReg::new(3, 0, 0, 4, 0), 44);
const PFR0_CSV2: Field = Field(SysReg::new(3, 0, 0, 4, 0), 56);
const PFR1_MTE: Field = Field(SysReg::new(3, 0, 0, 4, 1), 8);
const PFR1_SME: Field = Field(SysReg::new(3, 0, 0, 4, 1), 24);
const PFR1_GCS: Field = Field(SysReg::new(3, 0, 0, 4, 1), 44);
const PFR1_THE: Field = Field(SysReg::new(3, 0, 0, 4, 1), 48);
const DFR0_TRACE_VER: Field = Field(SysReg::new(3, 0, 0, 5, 0), 4);
const DFR0_PMU_VER: Field = Field(SysReg::new(3, 0, 0, 5, 0), 8);
const DFR0_PMS_VER: Field = Field(SysReg::new(3, 0, 0, 5, 0), 32);
/// Signed: FEAT_DoubleLock, unless it is negative.
const DFR0_DOUBLE_LOCK: Field = Field(SysReg::new(3, 0, 0, 5, 0), 36);
const DFR0_TRACE_FILT: Field = Field(SysReg::new(3, 0, 0, 5, 0), 40);
const DFR0_TRACE_BUFFER: Field = Field(SysReg::new(3, 0, 0, 5, 0), 44);
const DFR0_BRBE: Field = Field(SysReg::new(3, 0, 0, 5, 0), 52);
const ISAR0_TLB: Field = Field(SysReg::new(3, 0, 0, 6, 0), 56);
const ISAR1_DPB: Field = Field(SysReg::new(3, 0, 0, 6, 1), 0);
const ISAR1_APA: Field = Field(SysReg::new(3, 0, 0, 6, 1), 4);
const ISAR1_API: Field = Field(SysReg::new(3, 0, 0, 6, 1), 8);
const ISAR1_SPECRES: Field = Field(SysReg::new(3, 0, 0, 6, 1), 40);
const ISAR1_XS: Field = Field(SysReg::new(3, 0, 0, 6, 1), 56);
const ISAR1_LS64: Field = Field(SysReg::new(3, 0, 0, 6, 1), 60);
const ISAR2_APA3: Field = Field(SysReg::new(3, 0, 0, 6, 2), 12);
const ISAR2_MOPS: Field = Field(SysReg::new(3, 0, 0, 6, 2), 16);
const ISAR2_ATS1A: Field = Field(SysReg::new(3, 0, 0, 6, 2), 60);
const MMFR0_FGT: Field = Field(SysReg::new(3, 0, 0, 7, 0), 56);
const MMFR0_ECV: Field = Field(SysReg::new(3, 0, 0, 7, 0), 60);
const MMFR1_PAN: Field = Field(SysReg::new(3, 0, 0, 7, 1), 20);
const MMFR1_LO: Field = Field(SysReg::new(3, 0, 0, 7, 1), 16);
const MMFR1_VH: Field = Field(SysReg::new(3, 0, 0, 7, 1), 8);
const MMFR1_HCX: Field = Field(SysReg::new(3, 0, 0, 7, 1), 40);
const MMFR2_NV: Field = Field(SysReg::new(3, 0, 0, 7, 2), 24);
const MMFR2_EVT: Field = Field(SysReg::new(3, 0, 0, 7, 2), 56);
const MMFR3_TCRX: Field = Field(SysReg::new(3, 0, 0, 7, 3), 0);
const MMFR3_SCTLRX: Field = Field(SysReg::new(3, 0, 0, 7, 3), 4);
const MMFR3_S1PIE: Field = Field(SysReg::new(3, 0, 0, 7, 3), 8);
const MMFR3_S1POE: Field = Field(SysReg::new(3, 0, 0, 7, 3), 16);
const MMFR3_S2POE: Field = Field(SysReg::new(3, 0, 0, 7, 3), 20);
const MMFR3_AIE: Field = Field(SysReg::new(3, 0, 0, 7, 3), 24);
/// Signed: FEAT_E2H0, unless it is negative.
const MMFR4_E2H0: Field = Field(SysReg::new(3, 0, 0, 7, 4), 24);

impl Masks {
    /// The masks of a VM whose ID registers read `view` (see [`stile_sysreg::id::guest_view`]).
    pub fn new(view: &[u64; SPACE]) -> Self {
        let has = |Field(reg, lsb), least: u64| reg.id_index().and_then(|at| view.get(at)).is_some_and(|value| value >> lsb & 0xf >= least);
        let mut masks = Self { keep: [u64::MAX; Control::COUNT], set: [0; Control::COUNT] };

        masks.without(has(MMFR1_VH, 1), Control::Hcr, HCR_E2H, 0);
        // Without FEAT_E2H0, E2H is always set, and NV1 is RES0.
        masks.without(!has(MMFR4_E2H0, 8), Control::Hcr, 1 << 43, HCR_E2H);
        let pauth = has(ISAR1_APA, 1) || has(ISAR1_API, 1) || has(ISAR2_APA3, 1);
        masks.without(pauth, Control::Hcr, 0, 0b11 << 40); // APK, API
        let nv = has(MMFR2_NV, 1);
        masks.without(nv, Control::Hcr, 0b111 << 42, 0); // NV, NV1, AT
        masks.without(has(MMFR2_NV, 2), Control::Hcr, 1 << 45, 0); // NV2
        masks.without(has(MMFR1_LO, 1), Control::Hcr, 1 << 35, 0); // TLOR
        masks.without(has(PFR0_RAS, 1), Control::Hcr, 1 << 36, 0); // TERR
        masks.without(has(PFR0_RAS, 2), Control::Hcr, 0, 1 << 47); // FIEN
        masks.without(has(MMFR2_EVT, 1), Control::Hcr, 1 << 49 | 1 << 50 | 1 << 52, 0); // TID4, TICAB, TOCU
        masks.without(has(MMFR2_EVT, 2), Control::Hcr, 1 << 54 | 1 << 55, 0); // TTLBIS, TTLBOS
        masks.without(has(PFR0_CSV2, 2), Control::Hcr, 0, 1 << 53); // EnSCXT
        masks.without(has(PFR1_MTE, 2), Control::Hcr, 1 << 58, 1 << 56); // TID5; ATA

        let hcx = has(MMFR1_HCX, 1);
        masks.without(hcx, Control::Hcrx, u64::MAX, 0);
        masks.without(has(ISAR2_MOPS, 1), Control::Hcrx, 1 << 10 | 1 << 11, 0); // MCE2, MSCEn
        masks.without(has(ISAR1_XS, 1), Control::Hcrx, 0b11 << 3, 0); // FnXS, FGTnXS
        masks.without(hcx && has(MMFR3_TCRX, 1), Control::Hcrx, 0, 1 << 14); // TCR2En
        masks.without(hcx && has(MMFR3_SCTLRX, 1), Control::Hcrx, 0, 1 << 15); // SCTLR2En
        masks.without(hcx && has(PFR1_GCS, 1), Control::Hcrx, 0, 1 << 22); // GCSEn

        masks.without(has(PFR0_SVE, 1), Control::Cptr, 0, 0b11 << 16); // ZEN
        masks.without(has(PFR1_SME, 1), Control::Cptr, 0, 0b11 << 24); // SMEN
        masks.without(has(DFR0_TRACE_VER, 1), Control::Cptr, 1 << 28, 0); // TTA
        masks.without(has(PFR0_AMU, 1), Control::Cptr, 1 << 30, 0); // TAM

        masks.without(has(DFR0_PMU_VER, 1), Control::Mdcr, 1 << 5 | 1 << 6, 0); // TPMCR, TPM
        masks.without(has(DFR0_PMS_VER, 1), Control::Mdcr, 1 << 14, 0b11 << 12); // TPMS; E2PB
        masks.without(has(DFR0_TRACE_FILT, 1), Control::Mdcr, 1 << 19, 0); // TTRF
        masks.without(has(DFR0_TRACE_BUFFER, 1), Control::Mdcr, 0, 0b11 << 24); // E2TB
        // TDCC is part of FEAT_FGT.
        let fgt = has(MMFR0_FGT, 1);
        masks.without(fgt, Control::Mdcr, 1 << 27, 0);
        // EL1TVT, EL1TVCT, EL1NVPCT, EL1NVVCT, EVNTIS.
        masks.without(has(MMFR0_ECV, 1), Control::Cnthctl, 0x1f << 13, 0);

        for control in [Control::Hfgrtr, Control::Hfgwtr, Control::Hfgitr, Control::Hdfgrtr, Control::Hdfgwtr] {
            masks.without(fgt, control, u64::MAX, 0);
        }
        masks.fine_by_feature(&has);
        // Bits that trap when they are 0.
        let inverted = [
            (Control::Hfgrtr, Control::Hfgwtr, has(ISAR1_LS64, 3), 1 << 50),
            (Control::Hfgrtr, Control::Hfgwtr, has(PFR1_GCS, 1), 0b11 << 52),
            (Control::Hfgrtr, Control::Hfgwtr, has(PFR1_SME, 1), 0b11 << 54),
            (Control::Hfgrtr, Control::Hfgwtr, has(PFR1_THE, 1), 1 << 56),
            (Control::Hfgrtr, Control::Hfgwtr, has(MMFR3_S1PIE, 1), 0b11 << 57),
            (Control::Hfgrtr, Control::Hfgwtr, has(MMFR3_S1POE, 1), 0b11 << 59),
            (Control::Hfgrtr, Control::Hfgwtr, has(MMFR3_S2POE, 1), 1 << 61),
            (Control::Hfgrtr, Control::Hfgwtr, has(MMFR3_AIE, 1), 0b11 << 62),
            (Control::Hfgitr, Control::Hfgitr, has(DFR0_BRBE, 1), 0b11 << 55),
            (Control::Hfgitr, Control::Hfgitr, has(PFR1_GCS, 1), 1 << 57),
            (Control::Hdfgrtr, Control::Hdfgwtr, has(DFR0_BRBE, 1), 0b111 << 59),
            (Control::Hdfgrtr, Control::Hdfgwtr, has(DFR0_PMS_VER, 4), 1 << 62),
        ];
        for (reads, writes, has, bits) in inverted {
            masks.without(fgt && has, reads, 0, bits);
            masks.without(fgt && has, writes, 0, bits);
        }
        // T4 and T14 are RES0.
        masks.without(false, Control::Hstr, !0xffff | 1 << 4 | 1 << 14, 0);
        masks
    }

    /// Masks bits of the fine-grained trap registers that trap when 1, for features that the VM lacks. Their names are those
    /// of the feature's registers and instructions (Arm ARM, HFGRTR_EL2 to HDFGWTR_EL2).
    fn fine_by_feature(&mut self, has: &impl Fn(Field, u64) -> bool) {
        use Control::{Hdfgrtr, Hdfgwtr, Hfgitr, Hfgrtr, Hfgwtr};
        let pauth = has(ISAR1_APA, 1) || has(ISAR1_API, 1) || has(ISAR2_APA3, 1);
        let registers = [
            (pauth, 0x1f << 4),
            (has(MMFR1_LO, 1), 0x1f << 19),
            (has(PFR0_CSV2, 2), 0b11 << 30),
            (has(PFR0_GIC, 1), 1 << 39),
            (has(PFR0_RAS, 1), 0x3f << 40 | 1 << 49),
            (has(PFR0_RAS, 2), 0b111 << 46),
        ];
        for (has, bits) in registers {
            self.without(has, Hfgrtr, bits, 0);
            self.without(has, Hfgwtr, bits, 0);
        }
        let instructions = [
            (has(ISAR1_DPB, 1), 1 << 8),
            (has(ISAR1_DPB, 2), 1 << 9),
            (has(MMFR1_PAN, 2), 0b11 << 16),
            (has(ISAR0_TLB, 1), 0x3f << 18),
            (has(ISAR0_TLB, 2), 0xf << 24 | 0xff << 34),
            (has(ISAR1_SPECRES, 1), 0b111 << 48),
            (has(ISAR1_SPECRES, 2), 1 << 60),
            (has(ISAR2_ATS1A, 1), 1 << 62),
        ];
        for (has, bits) in instructions {
            self.without(has, Hfgitr, bits, 0);
        }
        let debug = [
            (!has(DFR0_DOUBLE_LOCK, 8), 1 << 11),
            (has(DFR0_PMU_VER, 1), 0x7ff << 12 | 0b11 << 57),
            (has(DFR0_PMS_VER, 1), 0x3ff << 23 | 1 << 63),
            (has(DFR0_TRACE_VER, 1), 0xffff << 33),
            (has(DFR0_TRACE_FILT, 1), 1 << 49),
            (has(DFR0_TRACE_BUFFER, 1), 0x7f << 50),
        ];
        for (has, bits) in debug {
            self.without(has, Hdfgrtr, bits, 0);
            self.without(has, Hdfgwtr, bits, 0);
        }
        // Write-only registers have no read trap bit: OSLAR_EL1, PMSWINC_EL0, PMCR_EL0, TRCOSLAR, TRFCR_EL1.
        self.without(false, Hdfgrtr, 1 << 8 | 1 << 20 | 1 << 21 | 1 << 42 | 1 << 49, 0);
        // Read-only registers have no write trap bit: AIDR_EL1, CCSIDR_EL1, CLIDR_EL1, CTR_EL0, DCZID_EL0,
        // ISR_EL1, LORID_EL1, MIDR_EL1, MPIDR_EL1, REVIDR_EL1, ERRIDR_EL1, ERXFR_EL1, ERXPFGF_EL1;
        let read_only = 1 << 2 | 0b11 << 9 | 0b11 << 14 | 1 << 18 | 1 << 21 | 0b11 << 25 | 1 << 28 | 1 << 40 | 1 << 42 | 1 << 46;
        self.without(false, Hfgwtr, read_only, 0);
        // DBGAUTHSTATUS_EL1, OSLSR_EL1, PMMIR_EL1, PMSIDR_EL1, TRCAUTHSTATUS, TRCID, TRCOSLSR, TRCSTATR, TRBIDR_EL1,
        // PMCEIDn_EL0, PMBIDR_EL1.
        let read_only = 1 << 6 | 1 << 9 | 1 << 22 | 1 << 30 | 1 << 34 | 1 << 40 | 1 << 43 | 1 << 47 | 1 << 51 | 1 << 58 | 1 << 63;
        self.without(false, Hdfgwtr, read_only, 0);
    }

    /// The bits of a fine-grained trap register that L1 may set in hardware while its VM runs: those that
    /// trap when 1, of features that the VM has.
    pub fn fine(&self, control: Control) -> u64 {
        self.keep[control as usize] & table::TRAPS_BY_ONE[control as usize]
    }

    /// Unless the VM has the feature, forces bits of a control to 0 (`zero`) or 1 (`one`).
    fn without(&mut self, has: bool, control: Control, zero: u64, one: u64) {
        if has {
            return;
        }
        if let (Some(keep), Some(set)) = (self.keep.get_mut(control as usize), self.set.get_mut(control as usize)) {
            *keep &= !zero;
            *set |= one;
        }
    }

    /// The effective value where L1 wrote `written`.
    #[inline]
    pub fn apply(&self, control: Control, written: u64) -> u64 {
        let at = control as usize;
        written & self.keep[at] | self.set[at]
    }
}
