//! The registers of the page, sorted by encoding.

use super::{Row, Slot, When};
use stile_sysreg::SysReg;

/// Rows of [`Row`]: the five numbers, name, offset; `alias` for a register whose EL1 name is redirected
/// under NV1 only. Each makes a constant of its name, too.
macro_rules! rows {
    ($($op0:literal $op1:literal $crn:literal $crm:literal $op2:literal $name:ident $offset:literal $($alias:ident)?;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`")]
            pub const $name: Slot = Slot::at($offset);
        )*

        /// All registers that FEAT_NV2 redirects to memory, sorted by encoding.
        pub static ROWS: &[Row] = &ALL;

        const ALL: [Row; [$($offset),*].len()] = [$(Row {
            name: stringify!($name),
            reg: SysReg::new($op0, $op1, $crn, $crm, $op2),
            slot: {
                assert!($offset % 8 == 0 && $offset < super::PAGE_SIZE, "invalid offset in the page");
                $name
            },
            when: rows!(@when $($alias)? $crn $crm $op2),
        }),*];
    };
    // The aliases `_EL12` and `_EL02` have op1 5.
    (@when alias $crn:literal $crm:literal $op2:literal) => { When::Alias(SysReg::new(3, 5, $crn, $crm, $op2)) };
    (@when $crn:literal $crm:literal $op2:literal) => { When::Always };
}

rows! {
    2 0 0 2 2 MDSCR_EL1 0x158;
    3 0 1 0 0 SCTLR_EL1 0x110 alias;
    3 0 1 0 1 ACTLR_EL1 0x118;
    3 0 1 0 2 CPACR_EL1 0x100 alias;
    3 0 1 2 0 ZCR_EL1 0x1e0 alias;
    3 0 1 2 1 TRFCR_EL1 0x880 alias;
    3 0 2 0 0 TTBR0_EL1 0x200 alias;
    3 0 2 0 1 TTBR1_EL1 0x210 alias;
    3 0 2 0 2 TCR_EL1 0x120 alias;
    3 0 2 0 3 TCR2_EL1 0x270 alias;
    3 0 4 0 0 SPSR_EL1 0x160 alias;
    3 0 4 0 1 ELR_EL1 0x230 alias;
    3 0 5 1 0 AFSR0_EL1 0x128 alias;
    3 0 5 1 1 AFSR1_EL1 0x130 alias;
    3 0 5 2 0 ESR_EL1 0x138 alias;
    3 0 5 6 0 TFSR_EL1 0x190 alias;
    3 0 6 0 0 FAR_EL1 0x220 alias;
    3 0 9 9 0 PMSCR_EL1 0x828 alias;
    3 0 9 9 2 PMSICR_EL1 0x838;
    3 0 9 9 3 PMSIRR_EL1 0x840;
    3 0 9 9 5 PMSEVFR_EL1 0x830;
    3 0 9 9 6 PMSLATFR_EL1 0x848;
    3 0 9 10 0 PMBLIMITR_EL1 0x800;
    3 0 9 10 1 PMBPTR_EL1 0x810;
    3 0 9 10 3 PMBSR_EL1 0x820;
    3 0 10 2 0 MAIR_EL1 0x140 alias;
    3 0 10 2 2 PIRE0_EL1 0x290 alias;
    3 0 10 2 3 PIR_EL1 0x2a0 alias;
    3 0 10 2 4 POR_EL1 0x2a8 alias;
    3 0 10 3 0 AMAIR_EL1 0x148 alias;
    3 0 10 5 0 MPAM1_EL1 0x900 alias;
    3 0 12 0 0 VBAR_EL1 0x250 alias;
    3 0 13 0 1 CONTEXTIDR_EL1 0x108 alias;
    3 0 13 0 7 SCXTNUM_EL1 0x188 alias;
    3 3 14 2 1 CNTP_CTL_EL0 0x180 alias;
    3 3 14 2 2 CNTP_CVAL_EL0 0x178 alias;
    3 3 14 3 1 CNTV_CTL_EL0 0x170 alias;
    3 3 14 3 2 CNTV_CVAL_EL0 0x168 alias;
    3 4 0 0 0 VPIDR_EL2 0x088;
    3 4 0 0 5 VMPIDR_EL2 0x050;
    3 4 1 1 0 HCR_EL2 0x078;
    3 4 1 1 3 HSTR_EL2 0x080;
    3 4 1 1 4 HFGRTR_EL2 0x1b8;
    3 4 1 1 5 HFGWTR_EL2 0x1c0;
    3 4 1 1 6 HFGITR_EL2 0x1c8;
    3 4 1 2 2 HCRX_EL2 0x0a0;
    3 4 2 1 0 VTTBR_EL2 0x020;
    3 4 2 1 2 VTCR_EL2 0x040;
    3 4 2 2 0 VNCR_EL2 0x0b0;
    3 4 3 1 0 HDFGRTR2_EL2 0x1a0;
    3 4 3 1 1 HDFGWTR2_EL2 0x1b0;
    3 4 3 1 2 HFGRTR2_EL2 0x2c0;
    3 4 3 1 3 HFGWTR2_EL2 0x2c8;
    3 4 3 1 4 HDFGRTR_EL2 0x1d0;
    3 4 3 1 5 HDFGWTR_EL2 0x1d8;
    3 4 3 1 6 HAFGRTR_EL2 0x1e8;
    3 4 3 1 7 HFGITR2_EL2 0x310;
    3 4 4 1 0 SP_EL1 0x240;
    3 4 5 2 3 VSESR_EL2 0x508;
    3 4 10 4 0 MPAMHCR_EL2 0x930;
    3 4 10 4 1 MPAMVPMV_EL2 0x938;
    3 4 10 6 0 MPAMVPM0_EL2 0x940;
    3 4 10 6 1 MPAMVPM1_EL2 0x948;
    3 4 10 6 2 MPAMVPM2_EL2 0x950;
    3 4 10 6 3 MPAMVPM3_EL2 0x958;
    3 4 10 6 4 MPAMVPM4_EL2 0x960;
    3 4 10 6 5 MPAMVPM5_EL2 0x968;
    3 4 10 6 6 MPAMVPM6_EL2 0x970;
    3 4 10 6 7 MPAMVPM7_EL2 0x978;
    3 4 12 1 1 VDISR_EL2 0x500;
    3 4 12 8 0 ICH_AP0R0_EL2 0x480;
    3 4 12 8 1 ICH_AP0R1_EL2 0x488;
    3 4 12 8 2 ICH_AP0R2_EL2 0x490;
    3 4 12 8 3 ICH_AP0R3_EL2 0x498;
    3 4 12 9 0 ICH_AP1R0_EL2 0x4a0;
    3 4 12 9 1 ICH_AP1R1_EL2 0x4a8;
    3 4 12 9 2 ICH_AP1R2_EL2 0x4b0;
    3 4 12 9 3 ICH_AP1R3_EL2 0x4b8;
    3 4 12 11 0 ICH_HCR_EL2 0x4c0;
    3 4 12 11 7 ICH_VMCR_EL2 0x4c8;
    3 4 12 12 0 ICH_LR0_EL2 0x400;
    3 4 12 12 1 ICH_LR1_EL2 0x408;
    3 4 12 12 2 ICH_LR2_EL2 0x410;
    3 4 12 12 3 ICH_LR3_EL2 0x418;
    3 4 12 12 4 ICH_LR4_EL2 0x420;
    3 4 12 12 5 ICH_LR5_EL2 0x428;
    3 4 12 12 6 ICH_LR6_EL2 0x430;
    3 4 12 12 7 ICH_LR7_EL2 0x438;
    3 4 12 13 0 ICH_LR8_EL2 0x440;
    3 4 12 13 1 ICH_LR9_EL2 0x448;
    3 4 12 13 2 ICH_LR10_EL2 0x450;
    3 4 12 13 3 ICH_LR11_EL2 0x458;
    3 4 12 13 4 ICH_LR12_EL2 0x460;
    3 4 12 13 5 ICH_LR13_EL2 0x468;
    3 4 12 13 6 ICH_LR14_EL2 0x470;
    3 4 12 13 7 ICH_LR15_EL2 0x478;
    3 4 13 0 2 TPIDR_EL2 0x090;
    3 4 14 0 3 CNTVOFF_EL2 0x060;
    3 4 14 0 6 CNTPOFF_EL2 0x1a8;
}

/// Fails the build unless rows are sorted by encoding, with unique encodings and offsets.
const _: () = {
    let mut taken = [false; super::REGISTERS];
    let mut at = 0;
    while at < ALL.len() {
        assert!(at == 0 || ALL[at - 1].reg.bits() < ALL[at].reg.bits(), "duplicate or misplaced register");
        let index = ALL[at].slot.index();
        assert!(!taken[index], "two registers at one offset");
        taken[index] = true;
        at += 1;
    }
};
