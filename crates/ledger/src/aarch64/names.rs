//! Names of the system registers that guests access and Stile may trap.

use super::{names_el2, sysreg};

/// Names by encoding: op0, op1, CRn, CRm, op2 ("AArch64 System register encoding" and "System instruction
/// encoding"), in ascending order. The identification registers have static rows instead.
const NAMES: &[([u8; 5], &str)] = &[
    ([1, 0, 7, 6, 2], "DC ISW"),
    ([1, 0, 7, 10, 2], "DC CSW"),
    ([1, 0, 7, 14, 2], "DC CISW"),
    ([2, 0, 0, 0, 2], "OSDTRRX_EL1"),
    ([2, 0, 0, 2, 0], "MDCCINT_EL1"),
    ([2, 0, 0, 2, 2], "MDSCR_EL1"),
    ([2, 0, 0, 3, 2], "OSDTRTX_EL1"),
    ([2, 0, 0, 6, 2], "OSECCR_EL1"),
    ([2, 0, 1, 0, 0], "MDRAR_EL1"),
    ([2, 0, 1, 0, 4], "OSLAR_EL1"),
    ([2, 0, 1, 1, 4], "OSLSR_EL1"),
    ([2, 0, 1, 3, 4], "OSDLR_EL1"),
    ([2, 0, 1, 4, 4], "DBGPRCR_EL1"),
    ([2, 0, 7, 8, 6], "DBGCLAIMSET_EL1"),
    ([2, 0, 7, 9, 6], "DBGCLAIMCLR_EL1"),
    ([2, 0, 7, 14, 6], "DBGAUTHSTATUS_EL1"),
    ([2, 3, 0, 1, 0], "MDCCSR_EL0"),
    ([2, 3, 0, 4, 0], "DBGDTR_EL0"),
    ([2, 3, 0, 5, 0], "DBGDTRRX_EL0"),
    ([3, 0, 1, 0, 0], "SCTLR_EL1"),
    ([3, 0, 1, 0, 1], "ACTLR_EL1"),
    ([3, 0, 1, 0, 2], "CPACR_EL1"),
    ([3, 0, 1, 0, 3], "SCTLR2_EL1"),
    ([3, 0, 1, 2, 0], "ZCR_EL1"),
    ([3, 0, 1, 2, 1], "TRFCR_EL1"),
    ([3, 0, 1, 2, 4], "SMPRI_EL1"),
    ([3, 0, 1, 2, 6], "SMCR_EL1"),
    ([3, 0, 2, 0, 0], "TTBR0_EL1"),
    ([3, 0, 2, 0, 1], "TTBR1_EL1"),
    ([3, 0, 2, 0, 2], "TCR_EL1"),
    ([3, 0, 2, 0, 3], "TCR2_EL1"),
    ([3, 0, 4, 6, 0], "ICC_PMR_EL1"),
    ([3, 0, 5, 1, 0], "AFSR0_EL1"),
    ([3, 0, 5, 1, 1], "AFSR1_EL1"),
    ([3, 0, 5, 2, 0], "ESR_EL1"),
    ([3, 0, 5, 3, 0], "ERRIDR_EL1"),
    ([3, 0, 5, 3, 1], "ERRSELR_EL1"),
    ([3, 0, 6, 0, 0], "FAR_EL1"),
    ([3, 0, 9, 9, 0], "PMSCR_EL1"),
    ([3, 0, 9, 10, 0], "PMBLIMITR_EL1"),
    ([3, 0, 9, 10, 1], "PMBPTR_EL1"),
    ([3, 0, 9, 10, 3], "PMBSR_EL1"),
    ([3, 0, 9, 10, 7], "PMBIDR_EL1"),
    ([3, 0, 9, 11, 0], "TRBLIMITR_EL1"),
    ([3, 0, 9, 14, 1], "PMINTENSET_EL1"),
    ([3, 0, 9, 14, 2], "PMINTENCLR_EL1"),
    ([3, 0, 9, 14, 6], "PMMIR_EL1"),
    ([3, 0, 10, 2, 0], "MAIR_EL1"),
    ([3, 0, 10, 3, 0], "AMAIR_EL1"),
    ([3, 0, 10, 4, 0], "LORSA_EL1"),
    ([3, 0, 10, 4, 1], "LOREA_EL1"),
    ([3, 0, 10, 4, 2], "LORN_EL1"),
    ([3, 0, 10, 4, 3], "LORC_EL1"),
    ([3, 0, 10, 4, 4], "MPAMIDR_EL1"),
    ([3, 0, 10, 4, 7], "LORID_EL1"),
    ([3, 0, 10, 5, 0], "MPAM1_EL1"),
    ([3, 0, 10, 5, 1], "MPAM0_EL1"),
    ([3, 0, 12, 1, 1], "DISR_EL1"),
    ([3, 0, 12, 8, 0], "ICC_IAR0_EL1"),
    ([3, 0, 12, 8, 1], "ICC_EOIR0_EL1"),
    ([3, 0, 12, 8, 2], "ICC_HPPIR0_EL1"),
    ([3, 0, 12, 8, 3], "ICC_BPR0_EL1"),
    ([3, 0, 12, 11, 1], "ICC_DIR_EL1"),
    ([3, 0, 12, 11, 3], "ICC_RPR_EL1"),
    ([3, 0, 12, 11, 5], "ICC_SGI1R_EL1"),
    ([3, 0, 12, 11, 6], "ICC_ASGI1R_EL1"),
    ([3, 0, 12, 11, 7], "ICC_SGI0R_EL1"),
    ([3, 0, 12, 12, 0], "ICC_IAR1_EL1"),
    ([3, 0, 12, 12, 1], "ICC_EOIR1_EL1"),
    ([3, 0, 12, 12, 2], "ICC_HPPIR1_EL1"),
    ([3, 0, 12, 12, 3], "ICC_BPR1_EL1"),
    ([3, 0, 12, 12, 4], "ICC_CTLR_EL1"),
    ([3, 0, 12, 12, 5], "ICC_SRE_EL1"),
    ([3, 0, 12, 12, 6], "ICC_IGRPEN0_EL1"),
    ([3, 0, 12, 12, 7], "ICC_IGRPEN1_EL1"),
    ([3, 0, 13, 0, 1], "CONTEXTIDR_EL1"),
    ([3, 0, 13, 0, 7], "SCXTNUM_EL1"),
    ([3, 1, 0, 0, 0], "CCSIDR_EL1"),
    ([3, 1, 0, 0, 1], "CLIDR_EL1"),
    ([3, 1, 0, 0, 2], "CCSIDR2_EL1"),
    ([3, 1, 0, 0, 4], "GMID_EL1"),
    ([3, 1, 0, 0, 6], "SMIDR_EL1"),
    ([3, 1, 0, 0, 7], "AIDR_EL1"),
    ([3, 2, 0, 0, 0], "CSSELR_EL1"),
    ([3, 3, 0, 0, 1], "CTR_EL0"),
    ([3, 3, 0, 0, 7], "DCZID_EL0"),
    ([3, 3, 2, 4, 0], "RNDR"),
    ([3, 3, 2, 4, 1], "RNDRRS"),
    ([3, 3, 9, 12, 0], "PMCR_EL0"),
    ([3, 3, 9, 12, 1], "PMCNTENSET_EL0"),
    ([3, 3, 9, 12, 2], "PMCNTENCLR_EL0"),
    ([3, 3, 9, 12, 3], "PMOVSCLR_EL0"),
    ([3, 3, 9, 12, 4], "PMSWINC_EL0"),
    ([3, 3, 9, 12, 5], "PMSELR_EL0"),
    ([3, 3, 9, 12, 6], "PMCEID0_EL0"),
    ([3, 3, 9, 12, 7], "PMCEID1_EL0"),
    ([3, 3, 9, 13, 0], "PMCCNTR_EL0"),
    ([3, 3, 9, 13, 1], "PMXEVTYPER_EL0"),
    ([3, 3, 9, 13, 2], "PMXEVCNTR_EL0"),
    ([3, 3, 9, 14, 0], "PMUSERENR_EL0"),
    ([3, 3, 9, 14, 3], "PMOVSSET_EL0"),
    ([3, 3, 13, 0, 5], "TPIDR2_EL0"),
    ([3, 3, 13, 0, 7], "SCXTNUM_EL0"),
    ([3, 3, 13, 2, 0], "AMCR_EL0"),
    ([3, 3, 13, 2, 1], "AMCFGR_EL0"),
    ([3, 3, 13, 2, 3], "AMUSERENR_EL0"),
    ([3, 3, 14, 0, 0], "CNTFRQ_EL0"),
    ([3, 3, 14, 0, 1], "CNTPCT_EL0"),
    ([3, 3, 14, 0, 5], "CNTPCTSS_EL0"),
    ([3, 3, 14, 2, 0], "CNTP_TVAL_EL0"),
    ([3, 3, 14, 2, 1], "CNTP_CTL_EL0"),
    ([3, 3, 14, 2, 2], "CNTP_CVAL_EL0"),
    ([3, 3, 14, 15, 7], "PMCCFILTR_EL0"),
];

const fn check(names: &[([u8; 5], &str)]) {
    let mut i = 1;
    while i < names.len() {
        assert!(number(names[i - 1].0) < number(names[i].0), "the table is not in order");
        i += 1;
    }
}
const _: () = check(NAMES);
const _: () = check(names_el2::NAMES);

const fn number([op0, op1, crn, crm, op2]: [u8; 5]) -> u32 {
    (op0 as u32) << 14 | (op1 as u32) << 11 | (crn as u32) << 7 | (crm as u32) << 3 | op2 as u32
}

/// The name of the register or instruction with this encoding: op0, op1, CRn, CRm, op2.
pub fn name(encoding: [u8; 5]) -> Option<&'static str> {
    if let [3, 0, 0, crm @ 0..8, op2 @ 0..8] = encoding {
        return Some(sysreg::ID_NAMES[usize::from(crm << 3 | op2)]);
    }
    [NAMES, names_el2::NAMES]
        .iter()
        .find_map(|names| names.binary_search_by_key(&number(encoding), |(known, _)| number(*known)).ok().map(|at| names[at].1))
}
