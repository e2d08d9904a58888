//! The ID registers of AArch32 state: `CRm` 1 to 3. Guests have AArch32 at EL0 at most, and read
//! these registers to report features to 32-bit programs.

use super::table::{
    Field, Register,
    Treatment::{Fixed, Keep, UpTo, Zero},
    fields,
};
use crate::encoding::SysReg;

const fn register(name: &'static str, crm: u8, op2: u8, fields: &'static [Field]) -> Register {
    Register { name, reg: SysReg::new(3, 0, 0, crm, op2), aarch32: true, fields }
}

/// Sorted by encoding. `ID_AFR0_EL1` is hidden, because its meaning is IMPLEMENTATION DEFINED.
pub(super) const REGISTERS: [Register; 22] = [
    register("ID_PFR0_EL1", 1, 0, PFR0),
    register("ID_PFR1_EL1", 1, 1, PFR1),
    register("ID_DFR0_EL1", 1, 2, DFR0),
    register("ID_AFR0_EL1", 1, 3, &[]),
    register("ID_MMFR0_EL1", 1, 4, MMFR0),
    register("ID_MMFR1_EL1", 1, 5, MMFR1),
    register("ID_MMFR2_EL1", 1, 6, MMFR2),
    register("ID_MMFR3_EL1", 1, 7, MMFR3),
    register("ID_ISAR0_EL1", 2, 0, ISAR0),
    register("ID_ISAR1_EL1", 2, 1, ISAR1),
    register("ID_ISAR2_EL1", 2, 2, ISAR2),
    register("ID_ISAR3_EL1", 2, 3, ISAR3),
    register("ID_ISAR4_EL1", 2, 4, ISAR4),
    register("ID_ISAR5_EL1", 2, 5, ISAR5),
    register("ID_MMFR4_EL1", 2, 6, MMFR4),
    register("ID_ISAR6_EL1", 2, 7, ISAR6),
    register("MVFR0_EL1", 3, 0, MVFR0),
    register("MVFR1_EL1", 3, 1, MVFR1),
    register("MVFR2_EL1", 3, 2, MVFR2),
    register("ID_PFR2_EL1", 3, 4, PFR2),
    register("ID_DFR1_EL1", 3, 5, DFR1),
    register("ID_MMFR5_EL1", 3, 6, MMFR5),
];

/// Unprivileged instructions without state of their own.
const PLAIN: &str = "nothing but registers that are switched anyway";
/// Fields that duplicate an AArch64 field.
const AS_AARCH64: &str = "as for AArch64";
/// Features of EL1 only.
const EL1: &str = "of no use at EL0: described as it is";

const PFR0: &[Field] = fields! {
    28 RAS Zero, AS_AARCH64;
    24 DIT UpTo(1), AS_AARCH64;
    20 AMU Zero, AS_AARCH64;
    16 CSV2 UpTo(1), AS_AARCH64;
    12 State3 Keep, PLAIN;
    8 State2 Keep, PLAIN;
    4 State1 Keep, PLAIN;
    0 State0 Keep, PLAIN;
};

const PFR1: &[Field] = fields! {
    28 GIC Fixed(1), AS_AARCH64;
    24 Virt_frac Zero, "no virtualization of AArch32";
    20 Sec_frac Zero, "one Security state";
    16 GenTimer UpTo(2), AS_AARCH64;
    12 Virtualization Zero, "no virtualization of AArch32";
    8 MProgMod Keep, EL1;
    4 Security Zero, "one Security state";
    0 ProgMod Keep, EL1;
};

const DFR0: &[Field] = fields! {
    28 TraceFilt Zero, AS_AARCH64;
    24 PerfMon Zero, AS_AARCH64;
    20 MProfDbg Zero, "not an M-profile processor";
    16 MMapTrc Zero, "no trace unit";
    12 CopTrc Zero, "no trace unit";
    8 MMapDbg Zero, "no memory-mapped debug registers in the guest's memory";
    4 CopSDbg Zero, "one Security state";
    0 CopDbg UpTo(8), AS_AARCH64;
};

const MMFR0: &[Field] = fields! {
    28 InnerShr Keep, EL1;
    24 FCSE Keep, EL1;
    20 AuxReg Keep, EL1;
    16 TCM Keep, EL1;
    12 ShareLvl Keep, EL1;
    8 OuterShr Keep, EL1;
    4 PMSA Keep, EL1;
    0 VMSA Keep, EL1;
};

const MMFR1: &[Field] = fields! {
    28 BPred Keep, EL1;
    24 L1TstCln Keep, EL1;
    20 L1Uni Keep, EL1;
    16 L1Hvd Keep, EL1;
    12 L1UniSW Keep, EL1;
    8 L1HvdSW Keep, EL1;
    4 L1UniVA Keep, EL1;
    0 L1HvdVA Keep, EL1;
};

const MMFR2: &[Field] = fields! {
    28 HWAccFlg Keep, EL1;
    24 WFIStall Keep, EL1;
    20 MemBarr Keep, PLAIN;
    16 UniTLB Keep, EL1;
    12 HvdTLB Keep, EL1;
    8 L1HvdRng Keep, EL1;
    4 L1HvdBG Keep, EL1;
    0 L1HvdFG Keep, EL1;
};

const MMFR3: &[Field] = fields! {
    28 Supersec Keep, EL1;
    24 CMemSz Keep, EL1;
    20 CohWalk Keep, EL1;
    16 PAN Keep, EL1;
    12 MaintBcst Keep, EL1;
    8 BPMaint Keep, EL1;
    4 CMaintSW Keep, EL1;
    0 CMaintVA Keep, EL1;
};

const ISAR0: &[Field] = fields! {
    24 Divide UpTo(2), PLAIN;
    20 Debug UpTo(1), PLAIN;
    16 Coproc Keep, PLAIN;
    12 CmpBranch Keep, PLAIN;
    8 BitField UpTo(1), PLAIN;
    4 BitCount UpTo(1), PLAIN;
    0 Swap UpTo(1), PLAIN;
};

const ISAR1: &[Field] = fields! {
    28 Jazelle UpTo(1), PLAIN;
    24 Interwork UpTo(3), PLAIN;
    20 Immediate UpTo(1), PLAIN;
    16 IfThen UpTo(1), PLAIN;
    12 Extend UpTo(2), PLAIN;
    8 Except_AR UpTo(1), PLAIN;
    4 Except UpTo(1), PLAIN;
    0 Endian UpTo(1), PLAIN;
};

const ISAR2: &[Field] = fields! {
    28 Reversal UpTo(2), PLAIN;
    24 PSR_AR UpTo(1), PLAIN;
    20 MultU UpTo(2), PLAIN;
    16 MultS UpTo(3), PLAIN;
    12 Mult UpTo(2), PLAIN;
    8 MultiAccessInt UpTo(2), PLAIN;
    4 MemHint UpTo(4), PLAIN;
    0 LoadStore UpTo(2), PLAIN;
};

const ISAR3: &[Field] = fields! {
    28 T32EE UpTo(1), PLAIN;
    24 TrueNOP UpTo(1), PLAIN;
    20 T32Copy UpTo(1), PLAIN;
    16 TabBranch UpTo(1), PLAIN;
    12 SynchPrim UpTo(2), PLAIN;
    8 SVC UpTo(1), PLAIN;
    4 SIMD UpTo(3), PLAIN;
    0 Saturate UpTo(1), PLAIN;
};

const ISAR4: &[Field] = fields! {
    28 SWP_frac UpTo(1), PLAIN;
    24 PSR_M UpTo(1), PLAIN;
    20 SynchPrim_frac UpTo(3), PLAIN;
    16 Barrier UpTo(1), PLAIN;
    12 SMC Zero, "no EL3; firmware is called with HVC";
    8 Writeback UpTo(1), PLAIN;
    4 WithShifts UpTo(4), PLAIN;
    0 Unpriv UpTo(2), PLAIN;
};

const ISAR5: &[Field] = fields! {
    28 VCMA UpTo(1), PLAIN;
    24 RDM UpTo(1), PLAIN;
    16 CRC32 UpTo(1), PLAIN;
    12 SHA2 UpTo(1), PLAIN;
    8 SHA1 UpTo(1), PLAIN;
    4 AES UpTo(2), PLAIN;
    0 SEVL UpTo(1), PLAIN;
};

const MMFR4: &[Field] = fields! {
    28 EVT Zero, AS_AARCH64;
    24 CCIDX Keep, AS_AARCH64;
    20 LSM UpTo(1), AS_AARCH64;
    16 HPDS UpTo(2), AS_AARCH64;
    12 CnP UpTo(1), AS_AARCH64;
    8 XNX Zero, AS_AARCH64;
    4 AC2 UpTo(1), EL1;
    0 SpecSEI Zero, AS_AARCH64;
};

const ISAR6: &[Field] = fields! {
    28 CLRBHB UpTo(1), PLAIN;
    24 I8MM UpTo(1), PLAIN;
    20 BF16 UpTo(1), PLAIN;
    16 SPECRES UpTo(2), PLAIN;
    12 SB UpTo(1), PLAIN;
    8 FHM UpTo(1), PLAIN;
    4 DP UpTo(1), PLAIN;
    0 JSCVT UpTo(1), PLAIN;
};

const MVFR0: &[Field] = fields! {
    28 FPRound UpTo(1), PLAIN;
    24 FPShVec UpTo(1), PLAIN;
    20 FPSqrt UpTo(1), PLAIN;
    16 FPDivide UpTo(1), PLAIN;
    12 FPTrap UpTo(1), PLAIN;
    8 FPDP UpTo(2), PLAIN;
    4 FPSP UpTo(2), PLAIN;
    0 SIMDReg UpTo(2), PLAIN;
};

const MVFR1: &[Field] = fields! {
    28 SIMDFMAC UpTo(1), PLAIN;
    24 FPHP UpTo(3), PLAIN;
    20 SIMDHP UpTo(2), PLAIN;
    16 SIMDSP UpTo(1), PLAIN;
    12 SIMDInt UpTo(1), PLAIN;
    8 SIMDLS UpTo(1), PLAIN;
    4 FPDNaN UpTo(1), PLAIN;
    0 FPFtZ UpTo(1), PLAIN;
};

const MVFR2: &[Field] = fields! {
    4 FPMisc UpTo(4), PLAIN;
    0 SIMDMisc UpTo(3), PLAIN;
};

const PFR2: &[Field] = fields! {
    8 RAS_frac Zero, AS_AARCH64;
    4 SSBS UpTo(1), AS_AARCH64;
    0 CSV3 UpTo(1), AS_AARCH64;
};

const DFR1: &[Field] = fields! {
    4 HPMN0 Zero, AS_AARCH64;
    0 MTPMU Zero, AS_AARCH64;
};

const MMFR5: &[Field] = fields! {
    4 nTLBPA UpTo(1), AS_AARCH64;
    0 ETS UpTo(3), AS_AARCH64;
};
