//! The table, in the order of encodings.

use super::debug;
use super::row::{Class, Row, registers, rows};

/// Cache maintenance by set and way: `op0` 1.
const SET_WAY: &[Row] = rows! {
    1 0 7 6 2   "DC ISW" SetWay "HCR_EL2.TSW";
    1 0 7 6 4   "DC IGSW" Mte "HCR_EL2.TSW";
    1 0 7 6 6   "DC IGDSW" Mte "HCR_EL2.TSW";
    1 0 7 10 2  "DC CSW" SetWay "HCR_EL2.TSW";
    1 0 7 10 4  "DC CGSW" Mte "HCR_EL2.TSW";
    1 0 7 10 6  "DC CGDSW" Mte "HCR_EL2.TSW";
    1 0 7 14 2  "DC CISW" SetWay "HCR_EL2.TSW";
    1 0 7 14 4  "DC CIGSW" Mte "HCR_EL2.TSW";
    1 0 7 14 6  "DC CIGDSW" Mte "HCR_EL2.TSW";
};

/// `op0` 3, `op1` 0.
const EL1: &[Row] = rows! {
    3 0 1 0 1   "ACTLR_EL1" Actlr "HCR_EL2.TACR";
    3 0 1 0 5   "RGSR_EL1" Mte "HCR_EL2.ATA";
    3 0 1 0 6   "GCR_EL1" Mte "HCR_EL2.ATA";
    3 0 1 2 1   "TRFCR_EL1" Trace "MDCR_EL2.TTRF";
    3 0 1 2 3   "TRCITECR_EL1" Trace "MDCR_EL2.TTRF";
    3 0 1 2 4   "SMPRI_EL1" Sme "HFGRTR_EL2.nSMPRI_EL1";
    3 0 4 6 0   "ICC_PMR_EL1" Gic "ICH_HCR_EL2.TC";
    3 0 5 3 0   "ERRIDR_EL1" Ras "HCR_EL2.TERR";
    3 0 5 3 1   "ERRSELR_EL1" Ras "HCR_EL2.TERR";
    3 0 5 3 2   "ERXGSR_EL1" Ras "HCR_EL2.TERR";
    3 0 5 4 0   "ERXFR_EL1" Ras "HCR_EL2.TERR";
    3 0 5 4 1   "ERXCTLR_EL1" Ras "HCR_EL2.TERR";
    3 0 5 4 2   "ERXSTATUS_EL1" Ras "HCR_EL2.TERR";
    3 0 5 4 3   "ERXADDR_EL1" Ras "HCR_EL2.TERR";
    3 0 5 4 4   "ERXPFGF_EL1" Ras "HCR_EL2.FIEN";
    3 0 5 4 5   "ERXPFGCTL_EL1" Ras "HCR_EL2.FIEN";
    3 0 5 4 6   "ERXPFGCDN_EL1" Ras "HCR_EL2.FIEN";
    3 0 5 5 0 to 5 3 "ERXMISC<n>_EL1" Ras "HCR_EL2.TERR";
    3 0 5 6 0   "TFSR_EL1" Mte "HCR_EL2.ATA";
    3 0 5 6 1   "TFSRE0_EL1" Mte "HCR_EL2.ATA";
    3 0 9 9 0   "PMSCR_EL1" Spe "MDCR_EL2.TPMS";
    3 0 9 9 1   "PMSNEVFR_EL1" Spe "MDCR_EL2.TPMS";
    3 0 9 9 2   "PMSICR_EL1" Spe "MDCR_EL2.TPMS";
    3 0 9 9 3   "PMSIRR_EL1" Spe "MDCR_EL2.TPMS";
    3 0 9 9 4   "PMSFCR_EL1" Spe "MDCR_EL2.TPMS";
    3 0 9 9 5   "PMSEVFR_EL1" Spe "MDCR_EL2.TPMS";
    3 0 9 9 6   "PMSLATFR_EL1" Spe "MDCR_EL2.TPMS";
    3 0 9 9 7   "PMSIDR_EL1" Spe "MDCR_EL2.TPMS";
    3 0 9 10 0  "PMBLIMITR_EL1" Spe "MDCR_EL2.E2PB";
    3 0 9 10 1  "PMBPTR_EL1" Spe "MDCR_EL2.E2PB";
    3 0 9 10 3  "PMBSR_EL1" Spe "MDCR_EL2.E2PB";
    3 0 9 10 4  "PMSDSFR_EL1" Spe "MDCR_EL2.TPMS";
    3 0 9 10 5  "PMBMAR_EL1" Spe "MDCR_EL2.E2PB";
    3 0 9 10 7  "PMBIDR_EL1" Spe "HDFGRTR_EL2.PMBIDR_EL1";
    3 0 9 11 0  "TRBLIMITR_EL1" Trbe "MDCR_EL2.E2TB";
    3 0 9 11 1  "TRBPTR_EL1" Trbe "MDCR_EL2.E2TB";
    3 0 9 11 2  "TRBBASER_EL1" Trbe "MDCR_EL2.E2TB";
    3 0 9 11 3  "TRBSR_EL1" Trbe "MDCR_EL2.E2TB";
    3 0 9 11 4  "TRBMAR_EL1" Trbe "MDCR_EL2.E2TB";
    3 0 9 11 5  "TRBMPAM_EL1" Trbe "MDCR_EL2.E2TB";
    3 0 9 11 6  "TRBTRG_EL1" Trbe "MDCR_EL2.E2TB";
    3 0 9 11 7  "TRBIDR_EL1" Trbe "HDFGRTR_EL2.TRBIDR_EL1";
    3 0 9 13 3  "PMSSCR_EL1" Pmu "MDCR_EL2.TPM";
    3 0 9 14 1  "PMINTENSET_EL1" Pmu "MDCR_EL2.TPM";
    3 0 9 14 2  "PMINTENCLR_EL1" Pmu "MDCR_EL2.TPM";
    3 0 9 14 4  "PMUACR_EL1" Pmu "MDCR_EL2.TPM";
    3 0 9 14 5  "PMECR_EL1" Pmu "MDCR_EL2.TPM";
    3 0 9 14 6  "PMMIR_EL1" Pmu "MDCR_EL2.TPM";
    3 0 10 4 0  "LORSA_EL1" LoRegion "HCR_EL2.TLOR";
    3 0 10 4 1  "LOREA_EL1" LoRegion "HCR_EL2.TLOR";
    3 0 10 4 2  "LORN_EL1" LoRegion "HCR_EL2.TLOR";
    3 0 10 4 3  "LORC_EL1" LoRegion "HCR_EL2.TLOR";
    3 0 10 4 4  "MPAMIDR_EL1" Mpam "MPAM2_EL2.TIDR";
    3 0 10 4 7  "LORID_EL1" LoRegion "HCR_EL2.TLOR";
    3 0 10 5 0  "MPAM1_EL1" Mpam "MPAM2_EL2.TRAPMPAM1EL1";
    3 0 10 5 1  "MPAM0_EL1" Mpam "MPAM2_EL2.TRAPMPAM0EL1";
    3 0 10 5 3  "MPAMSM_EL1" Mpam "MPAM2_EL2.EnMPAMSM";
    3 0 12 8 0  "ICC_IAR0_EL1" Gic "ICH_HCR_EL2.TALL0";
    3 0 12 8 1  "ICC_EOIR0_EL1" Gic "ICH_HCR_EL2.TALL0";
    3 0 12 8 2  "ICC_HPPIR0_EL1" Gic "ICH_HCR_EL2.TALL0";
    3 0 12 8 3  "ICC_BPR0_EL1" Gic "ICH_HCR_EL2.TALL0";
    3 0 12 8 4 to 8 7 "ICC_AP0R<n>_EL1" Gic "ICH_HCR_EL2.TALL0";
    3 0 12 9 0 to 9 3 "ICC_AP1R<n>_EL1" Gic "ICH_HCR_EL2.TALL1";
    3 0 12 11 1 "ICC_DIR_EL1" Gic "ICH_HCR_EL2.TDIR";
    3 0 12 11 3 "ICC_RPR_EL1" Gic "ICH_HCR_EL2.TC";
    3 0 12 11 5 "ICC_SGI1R_EL1" Sgi "HCR_EL2.IMO";
    3 0 12 11 6 "ICC_ASGI1R_EL1" Sgi "HCR_EL2.IMO";
    3 0 12 11 7 "ICC_SGI0R_EL1" Sgi "HCR_EL2.FMO";
    3 0 12 12 0 "ICC_IAR1_EL1" Gic "ICH_HCR_EL2.TALL1";
    3 0 12 12 1 "ICC_EOIR1_EL1" Gic "ICH_HCR_EL2.TALL1";
    3 0 12 12 2 "ICC_HPPIR1_EL1" Gic "ICH_HCR_EL2.TALL1";
    3 0 12 12 3 "ICC_BPR1_EL1" Gic "ICH_HCR_EL2.TALL1";
    3 0 12 12 4 "ICC_CTLR_EL1" Gic "ICH_HCR_EL2.TC";
    3 0 12 12 5 "ICC_SRE_EL1" Gic "ICC_SRE_EL2.Enable";
    3 0 12 12 6 "ICC_IGRPEN0_EL1" Gic "ICH_HCR_EL2.TALL0";
    3 0 12 12 7 "ICC_IGRPEN1_EL1" Gic "ICH_HCR_EL2.TALL1";
    3 0 13 0 7  "SCXTNUM_EL1" Scxtnum "HCR_EL2.EnSCXT";
};

/// `op0` 3, `op1` 1.
const IDENTIFICATION: &[Row] = rows! {
    3 1 0 0 4   "GMID_EL1" Mte "HCR_EL2.TID5";
    3 1 0 0 6   "SMIDR_EL1" Sme "HCR_EL2.TID1";
};

/// `op0` 3, `op1` 3: registers that EL0 may be allowed to use.
const EL0: &[Row] = rows! {
    3 3 9 4 0   "PMICNTR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 6 0   "PMICFILTR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 12 0  "PMCR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 12 1  "PMCNTENSET_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 12 2  "PMCNTENCLR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 12 3  "PMOVSCLR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 12 4  "PMSWINC_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 12 5  "PMSELR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 12 6  "PMCEID0_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 12 7  "PMCEID1_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 13 0  "PMCCNTR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 13 1  "PMXEVTYPER_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 13 2  "PMXEVCNTR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 13 4  "PMZR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 14 0  "PMUSERENR_EL0" Pmu "MDCR_EL2.TPM";
    3 3 9 14 3  "PMOVSSET_EL0" Pmu "MDCR_EL2.TPM";
    3 3 13 0 5  "TPIDR2_EL0" Sme "HFGRTR_EL2.nTPIDR2_EL0";
    3 3 13 0 7  "SCXTNUM_EL0" Scxtnum "HCR_EL2.EnSCXT";
    3 3 13 2 0  "AMCR_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 2 1  "AMCFGR_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 2 2  "AMCGCR_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 2 3  "AMUSERENR_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 2 4  "AMCNTENCLR0_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 2 5  "AMCNTENSET0_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 2 6  "AMCG1IDR_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 3 0  "AMCNTENCLR1_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 3 1  "AMCNTENSET1_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 4 0 to 5 7 "AMEVCNTR0<n>_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 6 0 to 7 7 "AMEVTYPER0<n>_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 12 0 to 13 7 "AMEVCNTR1<n>_EL0" Amu "CPTR_EL2.TAM";
    3 3 13 14 0 to 15 7 "AMEVTYPER1<n>_EL0" Amu "CPTR_EL2.TAM";
    3 3 14 0 1  "CNTPCT_EL0" Timer "CNTHCTL_EL2.EL1PCTEN";
    3 3 14 0 2  "CNTVCT_EL0" Timer "CNTHCTL_EL2.EL1TVCT";
    3 3 14 0 5  "CNTPCTSS_EL0" Timer "CNTHCTL_EL2.EL1PCTEN";
    3 3 14 0 6  "CNTVCTSS_EL0" Timer "CNTHCTL_EL2.EL1TVCT";
    3 3 14 2 0  "CNTP_TVAL_EL0" Timer "CNTHCTL_EL2.EL1PCEN";
    3 3 14 2 1  "CNTP_CTL_EL0" Timer "CNTHCTL_EL2.EL1PCEN";
    3 3 14 2 2  "CNTP_CVAL_EL0" Timer "CNTHCTL_EL2.EL1PCEN";
    3 3 14 3 0  "CNTV_TVAL_EL0" Timer "CNTHCTL_EL2.EL1TVT";
    3 3 14 3 1  "CNTV_CTL_EL0" Timer "CNTHCTL_EL2.EL1TVT";
    3 3 14 3 2  "CNTV_CVAL_EL0" Timer "CNTHCTL_EL2.EL1TVT";
    3 3 14 8 0 to 11 6 "PMEVCNTR<n>_EL0" Pmu "MDCR_EL2.TPM";
    3 3 14 12 0 to 15 6 "PMEVTYPER<n>_EL0" Pmu "MDCR_EL2.TPM";
    3 3 14 15 7 "PMCCFILTR_EL0" Pmu "MDCR_EL2.TPM";
};

/// Implementation-defined encodings: `CRn` 11 and 15, of registers and of system
/// instructions.
macro_rules! implementation_defined {
    ($($op1:literal)*) => {
        &[$(
            unarchitected(1, $op1, 11, concat!("S1_", $op1, "_C11_<n>")),
            unarchitected(1, $op1, 15, concat!("S1_", $op1, "_C15_<n>")),
            unarchitected(3, $op1, 11, concat!("S3_", $op1, "_C11_<n>")),
            unarchitected(3, $op1, 15, concat!("S3_", $op1, "_C15_<n>")),
        )*]
    };
}
const IMPLEMENTATION_DEFINED: &[Row] = implementation_defined!(0 1 2 3 4 5 6 7);

const fn unarchitected(op0: u8, op1: u8, crn: u8, name: &'static str) -> Row {
    let all = [(0, 0), (15, 7)];
    let class = Class::ImplementationDefined;
    registers((op0, op1, crn), all, name, class, "HCR_EL2.TIDCP")
}

const PARTS: [&[Row]; 8] = [SET_WAY, debug::CONTROL, debug::COMPARATORS, debug::TRACE, EL1, IDENTIFICATION, EL0, IMPLEMENTATION_DEFINED];

const COUNT: usize = {
    let mut count = 0;
    let mut part = 0;
    while part < PARTS.len() {
        count += PARTS[part].len();
        part += 1;
    }
    count
};

/// The table, sorted by encoding. No two rows have an encoding in common.
pub static ROWS: [Row; COUNT] = {
    let mut rows = [PARTS[0][0]; COUNT];
    let mut count = 0;
    let mut part = 0;
    while part < PARTS.len() {
        let mut at = 0;
        while at < PARTS[part].len() {
            insert(&mut rows, count, PARTS[part][at]);
            count += 1;
            at += 1;
        }
        part += 1;
    }
    check(&rows);
    rows
};

/// Puts `row` in its place among the first `count` rows, which are sorted.
const fn insert(rows: &mut [Row], count: usize, row: Row) {
    let mut at = count;
    while at > 0 && rows[at - 1].first.bits() > row.first.bits() {
        rows[at] = rows[at - 1];
        at -= 1;
    }
    rows[at] = row;
}

/// Stops the build if two rows have an encoding in common, a row ends before it begins, or a row is
/// in the ID space, which has separate tables.
const fn check(rows: &[Row]) {
    let mut at = 0;
    while at < rows.len() {
        let row = &rows[at];
        assert!(row.first.bits() <= row.last.bits(), "backward row");
        assert!(row.first.id_index().is_none(), "row in the ID space");
        assert!(!row.name.is_empty() && !row.trap.is_empty(), "unnamed row");
        if at > 0 {
            assert!(rows[at - 1].last.bits() < row.first.bits(), "double row");
        }
        at += 1;
    }
}
