//! Memory model features.

use crate::id::table::{
    Field,
    Given::{Nested, Plain, VheOnly},
    Treatment::{FixedIf, Keep, PaRange, SignedUpTo, UpTo, UpToIf, Zero},
    fields,
};

/// First-stage features that the guest controls through switched registers.
const STAGE_1: &str = "first stage, in registers that are switched";
/// Controls and features of an EL2, or of a second stage.
const EL2: &str = "for EL2: without a virtual EL2, nothing; with one, what that needs";
/// Controls in `TCR2_EL1`, which is not switched.
const TCR2: &str = "needs TCR2_EL1 or registers beside it, which aren't switched";
/// Descriptions of the processor.
const DESCRIPTION: &str = "describes the processor; nothing to switch";

/// `ID_AA64MMFR0_EL1`.
pub(super) const MMFR0: &[Field] = fields! {
    60 ECV UpTo(1), "self-synchronising counter reads; 2 is CNTPOFF_EL2, for EL2";
    56 FGT UpToIf(Nested, 1), "for EL2; 2 has nothing to trap that a guest has";
    44 ExS Zero, "injected exceptions are meant to synchronise the context";
    40 TGran4_2 Zero, "0 refers to TGran4: an EL2 has the same granules";
    36 TGran64_2 Zero, "0 refers to TGran64: an EL2 has the same granules";
    32 TGran16_2 Zero, "0 refers to TGran16: an EL2 has the same granules";
    28 TGran4 SignedUpTo(1), STAGE_1;
    24 TGran64 SignedUpTo(0), STAGE_1;
    20 TGran16 UpTo(2), STAGE_1;
    16 BigEndEL0 UpTo(1), STAGE_1;
    12 SNSMem Zero, "one Security state";
    8 BigEnd UpTo(1), STAGE_1;
    4 ASIDBits UpTo(2), STAGE_1;
    0 PARange PaRange, "guest-physical addresses are as wide as the second stage's input";
};

/// `ID_AA64MMFR1_EL1`.
pub(super) const MMFR1: &[Field] = fields! {
    60 ECBHB UpTo(1), "a promise about speculation; nothing to switch";
    56 CMOW Zero, "HCRX_EL2.CMOW belongs to it, and is 0";
    52 TIDCP1 UpTo(1), "a control in SCTLR_EL1";
    48 nTLBPA UpToIf(Plain, 1), "shadow tables keep what L1's tables said, until it invalidates";
    44 AFP UpTo(1), "FPCR is switched";
    40 HCX UpToIf(Nested, 1), EL2;
    36 ETS UpTo(3), DESCRIPTION;
    32 TWED Zero, "WFE is trapped, or not, without delay";
    28 XNX Zero, EL2;
    24 SpecSEI Zero, "SError interrupts of the machine are taken at EL2";
    20 PAN UpTo(3), "PSTATE.PAN moves with SPSR_EL2";
    16 LO Zero, "ordering regions are physical; trapped by HCR_EL2.TLOR";
    12 HPDS UpTo(2), STAGE_1;
    8 VH FixedIf(Nested, 1), EL2;
    4 VMIDBits UpToIf(Nested, 2), EL2;
    0 HAFDBS UpToIf(Plain, 2), "first stage; an EL2's second stage is walked by software. 3 needs TCR2_EL1, which isn't switched";
};

/// `ID_AA64MMFR2_EL1`.
pub(super) const MMFR2: &[Field] = fields! {
    60 E0PD UpTo(1), STAGE_1;
    56 EVT UpToIf(Nested, 2), EL2;
    52 BBM UpTo(2), STAGE_1;
    48 TTL UpTo(1), STAGE_1;
    40 FWB Zero, EL2;
    36 IDS UpTo(1), "which syndrome a trapped ID register has; 2 is for EL3";
    32 AT UpTo(1), "alignment of atomic accesses; nothing to switch";
    28 ST UpTo(1), STAGE_1;
    24 NV Zero, EL2;
    20 CCIDX Keep, "the form of CCSIDR_EL1, which the guest reads directly";
    16 VARange UpTo(1), "52 bits; 2 needs 128-bit translation tables";
    12 IESB Zero, "no RAS";
    8 LSM UpTo(1), "controls in SCTLR_EL1";
    4 UAO UpTo(1), "PSTATE.UAO moves with SPSR_EL2";
    0 CnP UpTo(1), STAGE_1;
};

/// `ID_AA64MMFR3_EL1`.
pub(super) const MMFR3: &[Field] = fields! {
    60 Spec_FPACC Zero, "a promise about speculation that nobody needs";
    56 ADERR Zero, "no RAS";
    52 SDERR Zero, "no RAS";
    44 ANERR Zero, "no RAS";
    40 SNERR Zero, "no RAS";
    36 D128_2 Zero, EL2;
    32 D128 Zero, TCR2;
    28 MEC Zero, "one Security state";
    24 AIE Zero, TCR2;
    20 S2POE Zero, EL2;
    16 S1POE Zero, TCR2;
    12 S2PIE Zero, EL2;
    8 S1PIE Zero, TCR2;
    4 SCTLRX Zero, "SCTLR2_EL1 isn't switched";
    0 TCRX Zero, TCR2;
};

/// `ID_AA64MMFR4_EL1`.
pub(super) const MMFR4: &[Field] = fields! {
    36 E3DSE Zero, "for EL3, which the guest hasn't";
    32 SRMASK Zero, "the mask registers aren't switched";
    28 RMEGDI Zero, "one Security state";
    24 E2H0 FixedIf(VheOnly, 0xe), "HCR_EL2.E2H is always set; otherwise it can be cleared, with HCR_EL2.NV1 below";
    20 NV_frac Zero, EL2;
    16 FGWTE3 Zero, "for EL3, which the guest hasn't";
    12 HACDBS Zero, EL2;
    8 ASID2 Zero, TCR2;
    4 EIESB Zero, "no RAS";
};
