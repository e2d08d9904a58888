//! Registers by name: their encodings, as constants and as operands of an assembler that may not know the name.

use crate::encoding::SysReg;

macro_rules! registers {
    ($dollar:tt; $($name:ident $op0:literal $op1:literal $crn:literal $crm:literal $op2:literal;)*) => {
        #[allow(non_upper_case_globals, reason = "the manual's names")]
        impl SysReg {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: Self = Self::new($op0, $op1, $crn, $crm, $op2);
            )*
        }

        /// The register as an operand of `mrs` and `msr`: its encoding if it has a row here, its name if not. For
        /// `concat!("mrs {}, ", operand!(SCTLR_EL12))`.
        #[macro_export]
        macro_rules! operand {
            $(($name) => { concat!("S", $op0, "_", $op1, "_C", $crn, "_C", $crm, "_", $op2) };)*
            ($dollar name:ident) => { stringify!($dollar name) };
        }

        const ROWS: &[(&str, SysReg)] = &[$((stringify!($name), SysReg::$name),)*];

        #[cfg(test)]
        const OPERANDS: &[&str] = &[$(concat!("S", $op0, "_", $op1, "_C", $crn, "_C", $crm, "_", $op2),)*];
    };
}

// In the order of their encodings: op0, op1, CRn, CRm, op2.
registers! {
    $;
    TLBI_VAALE1IS 1 0 8 3 7;
    MDSCR_EL1 2 0 0 2 2;
    MDRAR_EL1 2 0 1 0 0;
    OSLAR_EL1 2 0 1 0 4;
    OSLSR_EL1 2 0 1 1 4;
    DBGCLAIMCLR_EL1 2 0 7 9 6;
    ID_AA64ISAR2_EL1 3 0 0 6 2;
    ID_AA64MMFR2_EL1 3 0 0 7 2;
    ID_AA64MMFR4_EL1 3 0 0 7 4;
    ZCR_EL1 3 0 1 2 0;
    APIAKeyLo_EL1 3 0 2 1 0;
    APIAKeyHi_EL1 3 0 2 1 1;
    APIBKeyLo_EL1 3 0 2 1 2;
    APIBKeyHi_EL1 3 0 2 1 3;
    APDAKeyLo_EL1 3 0 2 2 0;
    APDAKeyHi_EL1 3 0 2 2 1;
    APDBKeyLo_EL1 3 0 2 2 2;
    APDBKeyHi_EL1 3 0 2 2 3;
    APGAKeyLo_EL1 3 0 2 3 0;
    APGAKeyHi_EL1 3 0 2 3 1;
    ICC_PMR_EL1 3 0 4 6 0;
    DISR_EL1 3 0 12 1 1;
    ICC_BPR0_EL1 3 0 12 8 3;
    ICC_AP1R0_EL1 3 0 12 9 0;
    ICC_AP1R1_EL1 3 0 12 9 1;
    ICC_AP1R2_EL1 3 0 12 9 2;
    ICC_AP1R3_EL1 3 0 12 9 3;
    ICC_DIR_EL1 3 0 12 11 1;
    ICC_RPR_EL1 3 0 12 11 3;
    ICC_SGI1R_EL1 3 0 12 11 5;
    ICC_ASGI1R_EL1 3 0 12 11 6;
    ICC_SGI0R_EL1 3 0 12 11 7;
    ICC_IAR1_EL1 3 0 12 12 0;
    ICC_EOIR1_EL1 3 0 12 12 1;
    ICC_BPR1_EL1 3 0 12 12 3;
    ICC_CTLR_EL1 3 0 12 12 4;
    ICC_SRE_EL1 3 0 12 12 5;
    ICC_IGRPEN0_EL1 3 0 12 12 6;
    ICC_IGRPEN1_EL1 3 0 12 12 7;
    FPCR 3 3 4 4 0;
    FPSR 3 3 4 4 1;
    PMCCNTR_EL0 3 3 9 13 0;
    CNTVCT_EL0 3 3 14 0 2;
    CNTVCTSS_EL0 3 3 14 0 6;
    CNTP_TVAL_EL0 3 3 14 2 0;
    CNTP_CTL_EL0 3 3 14 2 1;
    CNTP_CVAL_EL0 3 3 14 2 2;
    CNTV_TVAL_EL0 3 3 14 3 0;
    CNTV_CTL_EL0 3 3 14 3 1;
    CNTV_CVAL_EL0 3 3 14 3 2;
    PMEVCNTR0_EL0 3 3 14 8 0;
    SCTLR_EL2 3 4 1 0 0;
    ACTLR_EL2 3 4 1 0 1;
    MDCR_EL2 3 4 1 1 1;
    CPTR_EL2 3 4 1 1 2;
    HFGRTR_EL2 3 4 1 1 4;
    HFGWTR_EL2 3 4 1 1 5;
    HFGITR_EL2 3 4 1 1 6;
    HACR_EL2 3 4 1 1 7;
    ZCR_EL2 3 4 1 2 0;
    HCRX_EL2 3 4 1 2 2;
    TTBR0_EL2 3 4 2 0 0;
    TTBR1_EL2 3 4 2 0 1;
    TCR_EL2 3 4 2 0 2;
    VNCR_EL2 3 4 2 2 0;
    DACR32_EL2 3 4 3 0 0;
    HDFGRTR2_EL2 3 4 3 1 0;
    HDFGWTR2_EL2 3 4 3 1 1;
    HFGRTR2_EL2 3 4 3 1 2;
    HFGWTR2_EL2 3 4 3 1 3;
    HDFGRTR_EL2 3 4 3 1 4;
    HDFGWTR_EL2 3 4 3 1 5;
    HFGITR2_EL2 3 4 3 1 7;
    SPSR_EL2 3 4 4 0 0;
    ELR_EL2 3 4 4 0 1;
    SPSR_IRQ 3 4 4 3 0;
    SPSR_ABT 3 4 4 3 1;
    SPSR_UND 3 4 4 3 2;
    SPSR_FIQ 3 4 4 3 3;
    IFSR32_EL2 3 4 5 0 1;
    AFSR0_EL2 3 4 5 1 0;
    AFSR1_EL2 3 4 5 1 1;
    ESR_EL2 3 4 5 2 0;
    VSESR_EL2 3 4 5 2 3;
    FPEXC32_EL2 3 4 5 3 0;
    FAR_EL2 3 4 6 0 0;
    HPFAR_EL2 3 4 6 0 4;
    MAIR_EL2 3 4 10 2 0;
    AMAIR_EL2 3 4 10 3 0;
    MPAM2_EL2 3 4 10 5 0;
    VBAR_EL2 3 4 12 0 0;
    VDISR_EL2 3 4 12 1 1;
    ICH_AP0R0_EL2 3 4 12 8 0;
    ICH_AP0R1_EL2 3 4 12 8 1;
    ICH_AP0R2_EL2 3 4 12 8 2;
    ICH_AP0R3_EL2 3 4 12 8 3;
    ICH_AP1R0_EL2 3 4 12 9 0;
    ICH_AP1R1_EL2 3 4 12 9 1;
    ICH_AP1R2_EL2 3 4 12 9 2;
    ICH_AP1R3_EL2 3 4 12 9 3;
    ICC_SRE_EL2 3 4 12 9 5;
    ICH_HCR_EL2 3 4 12 11 0;
    ICH_VTR_EL2 3 4 12 11 1;
    ICH_MISR_EL2 3 4 12 11 2;
    ICH_EISR_EL2 3 4 12 11 3;
    ICH_ELRSR_EL2 3 4 12 11 5;
    ICH_VMCR_EL2 3 4 12 11 7;
    ICH_LR0_EL2 3 4 12 12 0;
    ICH_LR1_EL2 3 4 12 12 1;
    ICH_LR2_EL2 3 4 12 12 2;
    ICH_LR3_EL2 3 4 12 12 3;
    ICH_LR4_EL2 3 4 12 12 4;
    ICH_LR5_EL2 3 4 12 12 5;
    ICH_LR6_EL2 3 4 12 12 6;
    ICH_LR7_EL2 3 4 12 12 7;
    ICH_LR8_EL2 3 4 12 13 0;
    ICH_LR9_EL2 3 4 12 13 1;
    ICH_LR10_EL2 3 4 12 13 2;
    ICH_LR11_EL2 3 4 12 13 3;
    ICH_LR12_EL2 3 4 12 13 4;
    ICH_LR13_EL2 3 4 12 13 5;
    ICH_LR14_EL2 3 4 12 13 6;
    ICH_LR15_EL2 3 4 12 13 7;
    CONTEXTIDR_EL2 3 4 13 0 1;
    CNTHCTL_EL2 3 4 14 1 0;
    CNTHP_TVAL_EL2 3 4 14 2 0;
    CNTHP_CTL_EL2 3 4 14 2 1;
    CNTHP_CVAL_EL2 3 4 14 2 2;
    CNTHV_TVAL_EL2 3 4 14 3 0;
    CNTHV_CTL_EL2 3 4 14 3 1;
    CNTHV_CVAL_EL2 3 4 14 3 2;
    SCTLR_EL12 3 5 1 0 0;
    CPACR_EL12 3 5 1 0 2;
    ZCR_EL12 3 5 1 2 0;
    TTBR0_EL12 3 5 2 0 0;
    TTBR1_EL12 3 5 2 0 1;
    TCR_EL12 3 5 2 0 2;
    SPSR_EL12 3 5 4 0 0;
    ELR_EL12 3 5 4 0 1;
    AFSR0_EL12 3 5 5 1 0;
    AFSR1_EL12 3 5 5 1 1;
    ESR_EL12 3 5 5 2 0;
    FAR_EL12 3 5 6 0 0;
    MAIR_EL12 3 5 10 2 0;
    AMAIR_EL12 3 5 10 3 0;
    VBAR_EL12 3 5 12 0 0;
    CONTEXTIDR_EL12 3 5 13 0 1;
    CNTKCTL_EL12 3 5 14 1 0;
    CNTP_TVAL_EL02 3 5 14 2 0;
    CNTP_CTL_EL02 3 5 14 2 1;
    CNTP_CVAL_EL02 3 5 14 2 2;
    CNTV_TVAL_EL02 3 5 14 3 0;
    CNTV_CTL_EL02 3 5 14 3 1;
    CNTV_CVAL_EL02 3 5 14 3 2;
}

/// Name of a register of this table.
pub(crate) fn name(reg: SysReg) -> Option<&'static str> {
    ROWS.binary_search_by_key(&reg, |&(_, row)| row).ok().and_then(|at| ROWS.get(at)).map(|&(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::ToString;

    #[test]
    fn rows_are_in_order() {
        assert!(ROWS.is_sorted_by(|(_, before), (_, after)| before < after));
    }

    #[test]
    fn names_agree_with_the_other_tables() {
        for (name, reg) in ROWS {
            let known = crate::id::name(*reg).or_else(|| crate::trapped::row(*reg).map(|row| row.name));
            // A row of several registers has their number as `<n>`.
            let agrees = |known: &str| (0..16).any(|n| known.replace("<n>", &n.to_string()).eq_ignore_ascii_case(name));
            assert!(known.is_none_or(agrees), "{name}: {known:?}");
        }
    }

    #[test]
    fn an_operand_has_the_constants_numbers() {
        for ((name, reg), operand) in ROWS.iter().zip(OPERANDS) {
            let [op0, op1, crn, crm, op2] = [reg.op0(), reg.op1(), reg.crn(), reg.crm(), reg.op2()];
            assert_eq!(*operand, format!("S{op0}_{op1}_C{crn}_C{crm}_{op2}"), "{name}");
        }
    }
}
