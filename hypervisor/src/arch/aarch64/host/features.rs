//! CPU features, detected on the boot CPU; secondaries must have the same ones.

use core::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use super::sysreg::{isb, read_sysreg, write_sysreg};
use crate::once::Once;

/// Features that determine which registers move and which traps are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// AArch32 at EL0: without it, PSTATE.M\[4\] makes an exception return illegal, also Stile's.
    pub aarch32_el0: bool,
    /// FEAT_VHE: Stile runs with HCR_EL2.E2H set.
    pub vhe: bool,
    /// FEAT_SVE.
    pub sve: bool,
    /// FEAT_SME: trapped, because it is hidden from guests.
    pub sme: bool,
    /// FEAT_PAuth.
    pub pauth: bool,
    /// Level of authentication of addresses: the field APA, API or APA3 of the ID registers that is not 0.
    pub pauth_level: u8,
    /// FEAT_FGT: fine-grained traps.
    pub fgt: bool,
    /// FEAT_FGT2: further fine-grained traps.
    pub fgt2: bool,
    /// FEAT_HCX: HCRX_EL2.
    pub hcx: bool,
    /// FEAT_MOPS: memory copy and set instructions.
    pub mops: bool,
    /// FEAT_RAS.
    pub ras: bool,
    /// FEAT_MTE or later.
    pub mte: bool,
    /// FEAT_AMUv1.
    pub amu: bool,
    /// FEAT_MPAM.
    pub mpam: bool,
    /// Architectural PMU.
    pub pmu: bool,
    /// FEAT_ECV.
    pub ecv: bool,
    /// FEAT_TRF.
    pub trf: bool,
    /// FEAT_TRBE.
    pub trbe: bool,
    /// FEAT_SPE.
    pub spe: bool,
    /// FEAT_VMID16.
    pub vmid16: bool,
    /// ID_AA64MMFR0_EL1.PARange.
    pub pa_range: u8,
    /// 1: FEAT_NV. 2: FEAT_NV2.
    pub nv: u8,
    /// HCR_EL2.NV1 works: ID_AA64MMFR4_EL1.E2H0 is not 0b1110.
    pub nv1: bool,
    /// FEAT_PAN.
    pub pan: bool,
    /// Number of breakpoints minus 1.
    pub breakpoints: u8,
    /// Number of watchpoints minus 1.
    pub watchpoints: u8,
}

/// The features, and what load and put ask first.
struct Detected {
    features: Features,
    /// See [`moves_el1_plainly`].
    plain_el1: AtomicBool,
    /// See [`closes_el1`].
    closes_el1: AtomicBool,
}

static FEATURES: Once<Detected> = Once::new();
/// See [`vector_length`].
static VECTOR_LENGTH: AtomicU16 = AtomicU16::new(0);

#[inline(always)]
fn detected() -> &'static Detected {
    // SAFETY: the boot CPU sets it before any guest or other CPU runs; references to it are shared afterwards.
    unsafe { FEATURES.assume_set() }
}

/// Features of the boot CPU.
#[inline(always)]
pub fn get() -> &'static Features {
    &detected().features
}

/// Whether EL1's registers move by their VHE names, in any order: with FEAT_VHE, unless [`closes_el1`].
#[inline(always)]
pub fn moves_el1_plainly() -> bool {
    detected().plain_el1.load(Ordering::Relaxed)
}

/// Whether EL1's translation regime must be closed while its registers are of several vCPUs: one of the CPUs has the erratum
/// of [`stile_speculation::aarch64::has_speculative_at`].
pub fn closes_el1() -> bool {
    detected().closes_el1.load(Ordering::Relaxed)
}

/// Closes it from now on. Called by a CPU that has the erratum, before it runs guests.
pub fn close_el1() {
    detected().closes_el1.store(true, Ordering::Relaxed);
    detected().plain_el1.store(false, Ordering::Relaxed);
}

/// Detects the features of the calling CPU.
pub fn detect() -> Features {
    let pfr0 = read_sysreg!(ID_AA64PFR0_EL1);
    let pfr1 = read_sysreg!(ID_AA64PFR1_EL1);
    let dfr0 = read_sysreg!(ID_AA64DFR0_EL1);
    let isar1 = read_sysreg!(ID_AA64ISAR1_EL1);
    let isar2 = read_sysreg!(ID_AA64ISAR2_EL1);
    let mmfr0 = read_sysreg!(ID_AA64MMFR0_EL1);
    let mmfr1 = read_sysreg!(ID_AA64MMFR1_EL1);
    let mmfr2 = read_sysreg!(ID_AA64MMFR2_EL1);
    let mmfr4 = read_sysreg!(ID_AA64MMFR4_EL1);
    let field = |register: u64, shift: u32| register >> shift & 0xf;
    Features {
        aarch32_el0: field(pfr0, 0) >= 2,
        vhe: field(mmfr1, 8) != 0,
        sve: field(pfr0, 32) != 0,
        sme: field(pfr1, 24) != 0,
        pauth: field(isar1, 4) | field(isar1, 8) | field(isar1, 24) | field(isar1, 28) | field(isar2, 8) | field(isar2, 12) != 0,
        pauth_level: (field(isar1, 4) | field(isar1, 8) | field(isar2, 12)) as u8,
        fgt: field(mmfr0, 56) != 0,
        fgt2: field(mmfr0, 56) >= 2,
        hcx: field(mmfr1, 40) != 0,
        mops: field(isar2, 16) != 0,
        ras: field(pfr0, 28) != 0,
        mte: field(pfr1, 8) != 0,
        amu: field(pfr0, 44) != 0,
        mpam: field(pfr0, 40) != 0 || field(pfr1, 16) != 0,
        pmu: !matches!(field(dfr0, 8), 0 | 0xf),
        ecv: field(mmfr0, 60) != 0,
        trf: field(dfr0, 40) != 0,
        trbe: field(dfr0, 44) != 0,
        spe: field(dfr0, 32) != 0,
        vmid16: field(mmfr1, 4) == 2,
        pa_range: field(mmfr0, 0) as u8,
        nv: field(mmfr2, 24) as u8,
        nv1: field(mmfr2, 24) != 0 && field(mmfr4, 24) != 0b1110,
        pan: field(mmfr1, 20) != 0,
        breakpoints: field(dfr0, 12) as u8,
        watchpoints: field(dfr0, 20) as u8,
    }
}

/// Publishes the boot CPU's features.
pub fn set(features: Features) {
    FEATURES.set(Detected { features, plain_el1: AtomicBool::new(features.vhe), closes_el1: AtomicBool::new(false) });
}

/// Enables EL2's access to the registers that [`crate::arch::aarch64::vcpu::fp`] moves, with the maximum vector
/// length.
pub fn enable_fp_for_el2() {
    let have = get();
    if have.sve {
        write_sysreg!(ZCR_EL2, 0xf); // ZCR_EL2.LEN
    }
    isb();
    if have.sve {
        let bytes: u64;
        // SAFETY: RDVL reads the vector length, which EL2 can access from here on.
        unsafe {
            core::arch::asm!(
                ".arch_extension sve",
                "rdvl {}, #1",
                ".arch_extension nosve",
                out(reg) bytes,
                options(nomem, nostack, preserves_flags)
            );
        }
        VECTOR_LENGTH.store(bytes as u16, Ordering::Relaxed);
    }
}

/// Bytes of an SVE vector; 0 without SVE.
pub fn vector_length() -> u16 {
    VECTOR_LENGTH.load(Ordering::Relaxed)
}
