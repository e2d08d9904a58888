//! Processor features and debug features.

use crate::id::table::{
    Field,
    Given::{Nested, Sve},
    Treatment::{Fixed, FixedIf, Keep, SignedUpTo, UpTo, UpToIf, Zero},
    fields,
};

/// `ID_AA64PFR0_EL1`.
pub(super) const PFR0: &[Field] = fields! {
    60 CSV3 UpTo(1), "a promise about speculation; nothing to switch";
    56 CSV2 UpTo(1), "2 and 3 add SCXTNUM_ELx, which isn't switched";
    52 RME Zero, "one Security state";
    48 DIT UpTo(1), "PSTATE.DIT moves with SPSR_EL2";
    44 AMU Zero, "activity monitors count for all VMs of a CPU; trapped by CPTR_EL2.TAM";
    40 MPAM Zero, "memory partitions are the machine's; trapped by MPAM2_EL2";
    36 SEL2 Zero, "one Security state";
    32 SVE UpToIf(Sve, 1), "if its state is switched; else trapped by CPTR_EL2";
    28 RAS Zero, "error records are the machine's; trapped by HCR_EL2.TERR";
    24 GIC Fixed(1), "a GICv3 with system registers, whatever the machine has";
    20 AdvSIMD SignedUpTo(1), "the SIMD registers are switched";
    16 FP SignedUpTo(1), "the floating-point registers are switched";
    12 EL3 Zero, "firmware is called with HVC";
    8 EL2 FixedIf(Nested, 1), "AArch64 only";
    4 EL1 Fixed(1), "AArch64 only: HCR_EL2.RW is 1";
    0 EL0 UpTo(2), "AArch32 programs run as on the processor";
};

/// `ID_AA64PFR1_EL1`.
pub(super) const PFR1: &[Field] = fields! {
    60 PFAR Zero, "PFAR_EL1 isn't switched";
    56 DF2 Zero, "delegated SError needs SCTLR2_EL1, which isn't switched";
    52 MTEX Zero, "no memory tagging";
    48 THE Zero, "RCWMASK_EL1 and RCWSMASK_EL1 aren't switched";
    44 GCS Zero, "the GCS registers aren't switched; HCRX_EL2.GCSEn is 0";
    40 MTE_frac Zero, "no memory tagging";
    36 NMI Zero, "the virtual GIC has no non-maskable interrupts";
    32 CSV2_frac UpTo(1), "2 adds SCXTNUM_ELx, which isn't switched";
    28 RNDR_trap Zero, "a control of EL3, which the guest hasn't";
    24 SME Zero, "its state isn't switched; trapped by CPTR_EL2";
    16 MPAM_frac Zero, "no MPAM";
    12 RAS_frac Zero, "no RAS";
    8 MTE Zero, "tag memory isn't partitioned; trapped by HCR_EL2.ATA";
    4 SSBS UpTo(2), "PSTATE.SSBS moves with SPSR_EL2";
    0 BT UpTo(1), "PSTATE.BTYPE moves with SPSR_EL2";
};

/// `ID_AA64PFR2_EL1`.
pub(super) const PFR2: &[Field] = fields! {
    32 FPMR Zero, "FPMR isn't switched; HCRX_EL2.EnFPM is 0";
    16 UINJ Zero, "not offered: injecting undefined instructions is for EL2 and EL3";
    12 GCIE Zero, "the virtual interrupt controller is a GICv3";
    8 MTEFAR Zero, "no memory tagging";
    4 MTESTOREONLY Zero, "no memory tagging";
    0 MTEPERM Zero, "no memory tagging";
};

/// `ID_AA64DFR0_EL1`.
pub(super) const DFR0: &[Field] = fields! {
    60 HPMN0 Zero, "no PMU";
    56 ExtTrcBuff Zero, "no trace unit";
    52 BRBE Zero, "branch records aren't switched; trapped by MDCR_EL2 and HFGRTR_EL2";
    48 MTPMU Zero, "no PMU";
    44 TraceBuffer Zero, "the buffer is reached past stage 2; trapped by MDCR_EL2.E2TB";
    40 TraceFilt Zero, "no trace unit; trapped by MDCR_EL2.TTRF";
    36 DoubleLock SignedUpTo(0), "OSDLR_EL1 is there or not, as on the processor";
    32 PMSVer Zero, "the buffer is reached past stage 2; trapped by MDCR_EL2.E2PB";
    28 CTX_CMPs Keep, "how many there are";
    24 SEBEP Zero, "no PMU";
    20 WRPs Keep, "how many there are";
    16 PMSS Zero, "no PMU";
    12 BRPs Keep, "how many there are";
    8 PMUVer Zero, "counters aren't switched; trapped by MDCR_EL2.TPM";
    4 TraceVer Zero, "trace registers aren't switched; trapped by CPTR_EL2.TTA";
    0 DebugVer UpTo(8), "Armv8.2 debug; later ones add registers or need trace";
};
