//! Instruction set attributes.

use crate::id::table::{
    Field,
    Given::{Hcrx, Sve},
    Treatment::{UpTo, UpToIf, Zero},
    fields,
};

/// Instructions that access only memory, flags and registers that are switched anyway.
const PLAIN: &str = "nothing but registers that are switched anyway";
/// Instructions on SVE registers.
const SVE_ONLY: &str = "if SVE state is switched";
/// Pointer authentication.
const KEYS: &str = "the keys are switched; HCR_EL2.API and APK are 1";
/// Hints about memory.
const HINT: &str = "a hint";
/// Cache maintenance, barriers and prediction restrictions.
const NOT_TRAPPED: &str = "acts within EL0 and EL1, and isn't trapped";

/// `ID_AA64ZFR0_EL1`.
pub(super) const ZFR0: &[Field] = fields! {
    56 F64MM UpToIf(Sve, 1), SVE_ONLY;
    52 F32MM UpToIf(Sve, 1), SVE_ONLY;
    48 F16MM UpToIf(Sve, 1), SVE_ONLY;
    44 I8MM UpToIf(Sve, 1), SVE_ONLY;
    40 SM4 UpToIf(Sve, 1), SVE_ONLY;
    32 SHA3 UpToIf(Sve, 1), SVE_ONLY;
    24 B16B16 UpToIf(Sve, 2), SVE_ONLY;
    20 BF16 UpToIf(Sve, 2), SVE_ONLY;
    16 BitPerm UpToIf(Sve, 1), SVE_ONLY;
    12 EltPerm UpToIf(Sve, 1), SVE_ONLY;
    4 AES UpToIf(Sve, 3), SVE_ONLY;
    0 SVEver UpToIf(Sve, 3), SVE_ONLY;
};

/// `ID_AA64ISAR0_EL1`.
pub(super) const ISAR0: &[Field] = fields! {
    60 RNDR UpTo(1), PLAIN;
    56 TLB UpTo(2), "maintenance of the guest's own VMID, and isn't trapped";
    52 TS UpTo(2), PLAIN;
    48 FHM UpTo(1), PLAIN;
    44 DP UpTo(1), PLAIN;
    40 SM4 UpTo(1), PLAIN;
    36 SM3 UpTo(1), PLAIN;
    32 SHA3 UpTo(1), PLAIN;
    28 RDM UpTo(1), PLAIN;
    24 TME Zero, "withdrawn from the architecture; a trap inside a transaction aborts it";
    20 Atomic UpTo(3), PLAIN;
    16 CRC32 UpTo(1), PLAIN;
    12 SHA2 UpTo(2), PLAIN;
    8 SHA1 UpTo(1), PLAIN;
    4 AES UpTo(2), PLAIN;
};

/// `ID_AA64ISAR1_EL1`.
pub(super) const ISAR1: &[Field] = fields! {
    60 LS64 Zero, "64-byte accesses to a device model can't be emulated";
    56 XS UpTo(1), "nXS maintenance and barriers act as they stand while HCRX_EL2.FnXS is 0";
    52 I8MM UpTo(1), PLAIN;
    48 DGH UpTo(1), HINT;
    44 BF16 UpTo(2), PLAIN;
    40 SPECRES UpTo(2), NOT_TRAPPED;
    36 SB UpTo(1), NOT_TRAPPED;
    32 FRINTTS UpTo(1), PLAIN;
    28 GPI UpTo(1), KEYS;
    24 GPA UpTo(1), KEYS;
    20 LRCPC UpTo(3), PLAIN;
    16 FCMA UpTo(1), PLAIN;
    12 JSCVT UpTo(1), PLAIN;
    8 API UpTo(5), KEYS;
    4 APA UpTo(5), KEYS;
    0 DPB UpTo(2), NOT_TRAPPED;
};

/// `ID_AA64ISAR2_EL1`.
pub(super) const ISAR2: &[Field] = fields! {
    60 ATS1A Zero, "serves S1PIE and S1POE, which are hidden";
    56 LUT UpTo(1), PLAIN;
    52 CSSC UpTo(2), PLAIN;
    48 RPRFM UpTo(1), HINT;
    44 PCDPHINT UpTo(1), HINT;
    40 PRFMSLC UpTo(1), HINT;
    36 SYSINSTR_128 Zero, "no 128-bit translation tables";
    32 SYSREG_128 Zero, "128-bit registers aren't switched";
    28 CLRBHB UpTo(1), HINT;
    24 PAC_frac UpTo(1), KEYS;
    20 BC UpTo(1), PLAIN;
    16 MOPS UpToIf(Hcrx, 1), "undefined at EL1 unless HCRX_EL2.MSCEn is 1";
    12 APA3 UpTo(5), KEYS;
    8 GPA3 UpTo(1), KEYS;
    4 RPRES UpTo(1), "FPCR is switched";
    0 WFxT Zero, "a trapped WFIT would need a timer that wakes the vCPU";
};

/// `ID_AA64ISAR3_EL1`.
pub(super) const ISAR3: &[Field] = fields! {
    28 FPRCVT UpTo(1), PLAIN;
    24 LSUI UpTo(1), PLAIN;
    20 OCCMO Zero, "maintenance beyond the caches that the guest is told of";
    16 LSFE UpTo(1), PLAIN;
    12 PACM Zero, "serves PAuth_LR, which is hidden";
    8 TLBIW Zero, "concerns the second stage";
    4 FAMINMAX UpTo(1), PLAIN;
    0 CPA Zero, "needs SCTLR2_EL1, which isn't switched";
};
