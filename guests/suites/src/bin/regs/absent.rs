//! Registers of features that are absent according to the ID registers: accesses are undefined, at EL1, and
//! the guest continues.

use payload::encode::Sysreg;
use payload::harness::Test;
use payload::prelude::*;
use payload::{probe, tests};

use crate::id::field;

pub const TESTS: &[Test] = tests![absent_el2, absent_features, unallocated];

const fn s(op0: u32, op1: u32, crn: u32, crm: u32, op2: u32) -> Sysreg {
    Sysreg::new(op0, op1, crn, crm, op2)
}

/// Registers of EL2 and EL3, and the EL12 and EL02 names that VHE adds.
const EL2: [Sysreg; 18] = [
    s(3, 4, 1, 0, 0),   // SCTLR_EL2
    s(3, 4, 1, 1, 0),   // HCR_EL2
    s(3, 4, 2, 1, 0),   // VTTBR_EL2
    s(3, 4, 4, 0, 1),   // ELR_EL2
    s(3, 4, 12, 0, 0),  // VBAR_EL2
    s(3, 4, 12, 9, 5),  // ICC_SRE_EL2
    s(3, 4, 12, 11, 0), // ICH_HCR_EL2
    s(3, 4, 12, 12, 0), // ICH_LR0_EL2
    s(3, 4, 14, 0, 3),  // CNTVOFF_EL2
    s(3, 4, 14, 2, 1),  // CNTHP_CTL_EL2
    s(3, 4, 13, 0, 2),  // TPIDR_EL2
    s(2, 4, 0, 7, 0),   // DBGVCR32_EL2
    s(3, 5, 1, 0, 0),   // SCTLR_EL12
    s(3, 5, 2, 0, 0),   // TTBR0_EL12
    s(3, 5, 12, 0, 0),  // VBAR_EL12
    s(3, 5, 14, 3, 1),  // CNTV_CTL_EL02
    s(3, 6, 1, 1, 0),   // SCR_EL3
    s(3, 6, 12, 12, 4), // ICC_CTLR_EL3
];

/// Encodings that no architecture version allocates and that are not for implementations to define.
const UNALLOCATED: [Sysreg; 6] =
    [s(3, 0, 1, 7, 7), s(3, 0, 8, 0, 0), s(3, 3, 6, 0, 0), s(3, 7, 1, 0, 0), s(3, 2, 1, 0, 0), s(2, 7, 1, 0, 0)];

/// A feature: its name, whether the ID registers say that it is absent, and its registers.
struct Feature(&'static str, fn() -> bool, &'static [Sysreg]);

fn pfr0(low: u32) -> u64 {
    field(mrs!("ID_AA64PFR0_EL1"), low)
}

fn pfr1(low: u32) -> u64 {
    field(mrs!("ID_AA64PFR1_EL1"), low)
}

fn dfr0(low: u32) -> u64 {
    field(mrs!("ID_AA64DFR0_EL1"), low)
}

fn mmfr3(low: u32) -> u64 {
    field(mrs!("S3_0_C0_C7_3"), low)
}

#[rustfmt::skip]
static FEATURES: [Feature; 27] = [
    Feature("PMUv3", || matches!(dfr0(8), 0 | 15), &[
        s(3, 3, 9, 12, 0), s(3, 3, 9, 12, 1), s(3, 3, 9, 12, 5), s(3, 3, 9, 13, 0), s(3, 3, 9, 13, 1), s(3, 3, 9, 14, 0),
        s(3, 0, 9, 14, 1), s(3, 0, 9, 14, 2), s(3, 3, 14, 8, 0), s(3, 3, 14, 12, 0), s(3, 3, 14, 15, 7),
    ]),
    Feature("SVE", || pfr0(32) == 0, &[s(3, 0, 1, 2, 0)]),
    Feature("SME", || pfr1(24) == 0, &[s(3, 0, 1, 2, 6), s(3, 0, 1, 2, 4), s(3, 3, 4, 2, 2), s(3, 3, 13, 0, 5)]),
    // PSTATE.TCO: no trap exists for it, so a hypervisor that hides MTE can't hide it.
    Feature("MTE", || !machine::is_stile() && pfr1(8) == 0, &[s(3, 3, 4, 2, 7)]),
    // Not GMID_EL1: without MTE2, QEMU answers it itself, with another exception class.
    Feature("MTE2", || pfr1(8) < 2, &[s(3, 0, 1, 0, 6), s(3, 0, 1, 0, 5), s(3, 0, 5, 6, 0), s(3, 0, 5, 6, 1)]),
    Feature("PAuth", || mrs!("ID_AA64ISAR1_EL1") & 0xFF00_0FF0 == 0 && mrs!("S3_0_C0_C6_2") & 0xFF00 == 0, &[
        s(3, 0, 2, 1, 0), s(3, 0, 2, 1, 3), s(3, 0, 2, 2, 0), s(3, 0, 2, 3, 1),
    ]),
    Feature("RNG", || field(mrs!("ID_AA64ISAR0_EL1"), 60) == 0, &[s(3, 3, 2, 4, 0), s(3, 3, 2, 4, 1)]),
    Feature("AMU", || pfr0(44) == 0, &[s(3, 3, 13, 2, 0), s(3, 3, 13, 2, 1), s(3, 3, 13, 4, 0)]),
    // Not DISR_EL1, which a hypervisor that takes SErrors can't trap: the guest reads VDISR_EL2.
    Feature("RAS", || pfr0(28) == 0, &[s(3, 0, 5, 3, 0), s(3, 0, 5, 3, 1), s(3, 0, 5, 4, 0)]),
    Feature("MPAM", || pfr0(40) == 0 && pfr1(16) == 0, &[s(3, 0, 10, 4, 4), s(3, 0, 10, 5, 0), s(3, 0, 10, 5, 1)]),
    Feature("SPE", || dfr0(32) == 0, &[s(3, 0, 9, 9, 0), s(3, 0, 9, 9, 7), s(3, 0, 9, 10, 0), s(3, 0, 9, 10, 7)]),
    Feature("TRBE", || dfr0(44) == 0, &[s(3, 0, 9, 11, 0), s(3, 0, 9, 11, 7)]),
    Feature("trace", || dfr0(4) == 0, &[s(2, 1, 0, 1, 0), s(2, 1, 0, 8, 7)]),
    Feature("TRF", || dfr0(40) == 0, &[s(3, 0, 1, 2, 1)]),
    Feature("BRBE", || dfr0(52) == 0, &[s(2, 1, 9, 0, 0), s(2, 1, 9, 2, 0)]),
    Feature("LOR", || field(mrs!("ID_AA64MMFR1_EL1"), 16) == 0, &[s(3, 0, 10, 4, 0), s(3, 0, 10, 4, 3), s(3, 0, 10, 4, 7)]),
    Feature("PAN", || field(mrs!("ID_AA64MMFR1_EL1"), 20) == 0, &[s(3, 0, 4, 2, 3)]),
    Feature("UAO", || field(mrs!("ID_AA64MMFR2_EL1"), 4) == 0, &[s(3, 0, 4, 2, 4)]),
    Feature("DIT", || pfr0(48) == 0, &[s(3, 3, 4, 2, 5)]),
    Feature("SSBS", || pfr1(4) == 0, &[s(3, 3, 4, 2, 6)]),
    Feature("ECV", || field(mrs!("ID_AA64MMFR0_EL1"), 60) == 0, &[s(3, 3, 14, 0, 5), s(3, 3, 14, 0, 6)]),
    // No trap exists for reads of PSTATE.ALLINT, either.
    Feature("NMI", || !machine::is_stile() && pfr1(36) == 0, &[s(3, 0, 4, 3, 0)]),
    Feature("GCS", || pfr1(44) == 0, &[s(3, 0, 2, 5, 0), s(3, 0, 2, 5, 1)]),
    Feature("TCR2", || mmfr3(0) == 0, &[s(3, 0, 2, 0, 3)]),
    Feature("SCTLR2", || mmfr3(4) == 0, &[s(3, 0, 1, 0, 3)]),
    Feature("S1PIE", || mmfr3(8) == 0, &[s(3, 0, 10, 2, 2), s(3, 0, 10, 2, 3)]),
    Feature("S1POE", || mmfr3(16) == 0, &[s(3, 0, 10, 2, 4), s(3, 3, 10, 2, 4)]),
];

/// Exception class of an access to SME that CPACR_EL1.SMEN traps.
const EC_SME: u64 = 0x1D;

/// Reads and writes raise the exception of an undefined instruction, at the instruction, without side
/// effects.
fn undefined(register: Sysreg, what: &str) -> Outcome {
    const VALUE: u64 = 0x5A5A;
    for (word, access) in [(register.read(0), "reading"), (register.write(0), "writing")] {
        let (x0, fault) = probe::one(word, VALUE);
        let Some(fault) = fault else {
            return Err(Fail::new(format_args!("{what}: {access} {register} takes no exception, x0 {x0:#x}")));
        };
        // A CPU with SME checks CPACR_EL1 first, before any trap that hides it: that exception is EL1's own.
        let own = what == "SME" && fault.class() == EC_SME;
        check!(fault.is_undefined() || own, "{what}: {access} {register}: ESR_EL1 is {:#x}, expected EC 0", fault.esr);
        check_eq!(fault.pc, probe::address(), "{what}: {access} {register}: ELR_EL1");
        check_eq!(fault.pstate & 0x3CF, 0x3C5, "{what}: {access} {register}: SPSR_EL1 (EL1h, DAIF)");
        check_eq!(x0, VALUE, "{what}: {access} {register}: x0");
    }
    Ok(())
}

fn absent_el2() -> Outcome {
    EL2.into_iter().try_for_each(|register| undefined(register, "EL2, EL3"))
}

fn absent_features() -> Outcome {
    for Feature(name, absent, registers) in &FEATURES {
        if absent() {
            registers.iter().try_for_each(|register| undefined(*register, name))?;
        }
    }
    Ok(())
}

fn unallocated() -> Outcome {
    UNALLOCATED.into_iter().try_for_each(|register| undefined(register, "unallocated"))
}
