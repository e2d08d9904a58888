//! System registers: a row for each identification register and each frequently trapped register.

use crate::RowId;
use crate::aarch64::calls;
use crate::catalogue::Block;

/// The identification registers: op0 = 3, op1 = 0, CRn = 0, by CRm (0 to 7) and op2.
pub(super) const ID: Block = calls::HVC_CALLS.then(64);
pub(super) const ID_NAMES: &[&str; 64] = &[
    // CRm = 0
    "MIDR_EL1",
    "S3_0_C0_C0_1",
    "S3_0_C0_C0_2",
    "S3_0_C0_C0_3",
    "S3_0_C0_C0_4",
    "MPIDR_EL1",
    "REVIDR_EL1",
    "S3_0_C0_C0_7",
    // CRm = 1
    "ID_PFR0_EL1",
    "ID_PFR1_EL1",
    "ID_DFR0_EL1",
    "ID_AFR0_EL1",
    "ID_MMFR0_EL1",
    "ID_MMFR1_EL1",
    "ID_MMFR2_EL1",
    "ID_MMFR3_EL1",
    // CRm = 2
    "ID_ISAR0_EL1",
    "ID_ISAR1_EL1",
    "ID_ISAR2_EL1",
    "ID_ISAR3_EL1",
    "ID_ISAR4_EL1",
    "ID_ISAR5_EL1",
    "ID_MMFR4_EL1",
    "ID_ISAR6_EL1",
    // CRm = 3
    "MVFR0_EL1",
    "MVFR1_EL1",
    "MVFR2_EL1",
    "S3_0_C0_C3_3",
    "ID_PFR2_EL1",
    "ID_DFR1_EL1",
    "ID_MMFR5_EL1",
    "S3_0_C0_C3_7",
    // CRm = 4
    "ID_AA64PFR0_EL1",
    "ID_AA64PFR1_EL1",
    "ID_AA64PFR2_EL1",
    "S3_0_C0_C4_3",
    "ID_AA64ZFR0_EL1",
    "ID_AA64SMFR0_EL1",
    "S3_0_C0_C4_6",
    "ID_AA64FPFR0_EL1",
    // CRm = 5
    "ID_AA64DFR0_EL1",
    "ID_AA64DFR1_EL1",
    "ID_AA64DFR2_EL1",
    "S3_0_C0_C5_3",
    "ID_AA64AFR0_EL1",
    "ID_AA64AFR1_EL1",
    "S3_0_C0_C5_6",
    "S3_0_C0_C5_7",
    // CRm = 6
    "ID_AA64ISAR0_EL1",
    "ID_AA64ISAR1_EL1",
    "ID_AA64ISAR2_EL1",
    "ID_AA64ISAR3_EL1",
    "S3_0_C0_C6_4",
    "S3_0_C0_C6_5",
    "S3_0_C0_C6_6",
    "S3_0_C0_C6_7",
    // CRm = 7
    "ID_AA64MMFR0_EL1",
    "ID_AA64MMFR1_EL1",
    "ID_AA64MMFR2_EL1",
    "ID_AA64MMFR3_EL1",
    "ID_AA64MMFR4_EL1",
    "S3_0_C0_C7_5",
    "S3_0_C0_C7_6",
    "S3_0_C0_C7_7",
];

/// The row of an identification register (op0 = 3, op1 = 0, CRn = 0). Only the low three bits of `crm` and
/// `op2` are used.
#[inline]
pub const fn id_register(crm: u8, op2: u8) -> RowId {
    ID.row((crm as usize & 7) << 3 | op2 as usize & 7)
}

/// A frequently trapped register with separate rows, for [`sysreg`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HotRegister {
    /// `ICC_SGI1R_EL1`: an SGI of the guest's own group.
    IccSgi1r,
    /// `ICC_ASGI1R_EL1`: an SGI of the other security state.
    IccAsgi1r,
    /// `ICC_SGI0R_EL1`: an SGI of group 0.
    IccSgi0r,
    /// `ICC_DIR_EL1`: deactivation, where it is trapped.
    IccDir,
    /// `CNTP_CTL_EL0`.
    CntpCtl,
    /// `CNTP_CVAL_EL0`.
    CntpCval,
    /// `CNTP_TVAL_EL0`.
    CntpTval,
    /// `CNTPCT_EL0`, and `CNTPCTSS_EL0`.
    Cntpct,
    /// `OSLAR_EL1`.
    Oslar,
    /// `OSDLR_EL1`.
    Osdlr,
    /// `MDSCR_EL1`.
    Mdscr,
    /// `PMCR_EL0`.
    Pmcr,
    /// `PMUSERENR_EL0`.
    Pmuserenr,
    /// `DC CISW`, `DC CSW` and `DC ISW`: cache maintenance by set and way.
    DcSetWay,
    /// `ACTLR_EL1`.
    Actlr,
}

pub(super) const HOT_NAMES: &[&str] = &[
    "ICC_SGI1R_EL1",
    "ICC_ASGI1R_EL1",
    "ICC_SGI0R_EL1",
    "ICC_DIR_EL1",
    "CNTP_CTL_EL0",
    "CNTP_CVAL_EL0",
    "CNTP_TVAL_EL0",
    "CNTPCT_EL0",
    "OSLAR_EL1",
    "OSDLR_EL1",
    "MDSCR_EL1",
    "PMCR_EL0",
    "PMUSERENR_EL0",
    "DC by set/way",
    "ACTLR_EL1",
];

pub(super) const HOT: Block = ID.then(2 * HOT_NAMES.len());

/// The row of an access to a frequently trapped register.
#[inline]
pub const fn sysreg(register: HotRegister, write: bool) -> RowId {
    HOT.access(register as usize, write)
}
