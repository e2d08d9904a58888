//! Identification registers.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::encode::Sysreg;
use payload::harness::Test;
use payload::prelude::*;
use payload::{probe, tests};

pub const TESTS: &[Test] = tests![
    id_space_readable,
    id_same_on_all_cpus,
    id_read_only,
    affinity,
    features_together,
    hidden_by_stile,
    actlr,
    fp_arithmetic,
    pointer_authentication,
];

/// A 4-bit field of an ID register.
pub fn field(value: u64, low: u32) -> u64 {
    value >> low & 0xF
}

/// The feature registers: CRm 1 to 7, all of which can be read, those not yet allocated as zero.
fn space() -> impl Iterator<Item = Sysreg> {
    (1..8).flat_map(|crm| (0..8).map(move |op2| Sysreg::new(3, 0, 0, crm, op2)))
}

fn id_space_readable() -> Outcome {
    let names = [Sysreg::new(3, 0, 0, 0, 0), Sysreg::new(3, 0, 0, 0, 5), Sysreg::new(3, 0, 0, 0, 6)];
    let others = [Sysreg::new(3, 3, 0, 0, 1), Sysreg::new(3, 3, 0, 0, 7), Sysreg::new(3, 1, 0, 0, 1), Sysreg::new(3, 1, 0, 0, 7)];
    for register in names.into_iter().chain(others).chain(space()) {
        let (_, fault) = probe::one(register.read(0), 0);
        check!(fault.is_none(), "reading {register} took an exception: {fault:x?}");
    }
    Ok(())
}

fn id_same_on_all_cpus() -> Outcome {
    static FIRST: [AtomicU64; 56] = [const { AtomicU64::new(0) }; 56];
    for (cell, register) in FIRST.iter().zip(space()) {
        cell.store(probe::one(register.read(0), 0).0, Release);
    }
    smp::on_all(|| {
        for (cell, register) in FIRST.iter().zip(space()) {
            check_eq!(probe::one(register.read(0), 0).0, cell.load(Acquire), "{register} on CPU {}, against CPU 0", smp::this());
        }
        Ok(())
    })
}

fn id_read_only() -> Outcome {
    for register in space() {
        let (_, fault) = probe::one(register.write(0), 0);
        check!(fault.is_some_and(|fault| fault.is_undefined()), "writing {register} is not undefined: {fault:x?}");
    }
    Ok(())
}

fn affinity() -> Outcome {
    smp::on_all(|| {
        let value = mrs!("MPIDR_EL1");
        check!(value >> 31 & 1 == 1, "MPIDR_EL1 {value:#x}: bit 31 is 0");
        check!(value >> 24 & 1 == 0, "MPIDR_EL1 {value:#x}: MT is 1");
        check!(value & 0xFF_00FF_FF00 == 0, "MPIDR_EL1 {value:#x}: affinity above level 0");
        check!((value & 0xFF) < machine::cpus() as u64, "MPIDR_EL1 {value:#x}: affinity level 0");
        Ok(())
    })
}

/// Features that imply others, and features of the board.
fn features_together() -> Outcome {
    let pfr0 = mrs!("ID_AA64PFR0_EL1");
    check!(field(pfr0, 4) >= 1, "ID_AA64PFR0_EL1 {pfr0:#x}: no EL1");
    check!((field(pfr0, 24) >= 1) != machine::is_gicv2(), "ID_AA64PFR0_EL1 {pfr0:#x}: GIC system registers");
    check!(field(pfr0, 16) == field(pfr0, 20), "ID_AA64PFR0_EL1 {pfr0:#x}: FP and AdvSIMD differ");
    if field(pfr0, 32) == 0 {
        check_eq!(mrs!("S3_0_C0_C4_4"), 0, "ID_AA64ZFR0_EL1 without SVE");
    }
    let pfr1 = mrs!("ID_AA64PFR1_EL1");
    if field(pfr1, 24) == 0 {
        check_eq!(mrs!("S3_0_C0_C4_5"), 0, "ID_AA64SMFR0_EL1 without SME");
    }
    Ok(())
}

fn hidden_by_stile() -> Outcome {
    if !machine::is_stile() {
        skip!("not a VM of Stile");
    }
    let pfr0 = mrs!("ID_AA64PFR0_EL1");
    let pfr1 = mrs!("ID_AA64PFR1_EL1");
    let dfr0 = mrs!("ID_AA64DFR0_EL1");
    let mmfr2 = mrs!("ID_AA64MMFR2_EL1");
    let hidden = [
        ("EL2", field(pfr0, 8)),
        ("EL3", field(pfr0, 12)),
        ("AMU", field(pfr0, 44)),
        ("MPAM", field(pfr0, 40)),
        ("MTE", field(pfr1, 8)),
        ("SME", field(pfr1, 24)),
        ("TraceVer", field(dfr0, 4)),
        ("PMUVer", field(dfr0, 8)),
        ("PMSVer", field(dfr0, 32)),
        ("TraceBuffer", field(dfr0, 44)),
        ("BRBE", field(dfr0, 52)),
        ("NV", field(mmfr2, 24)),
    ];
    for (name, value) in hidden {
        check_eq!(value, 0, "the ID field of {name}");
    }
    Ok(())
}

/// Implementation-defined: a guest may find it fixed, but reading and writing back must do.
fn actlr() -> Outcome {
    let value = mrs!("ACTLR_EL1");
    msr!("ACTLR_EL1", value);
    check_eq!(mrs!("ACTLR_EL1"), value, "ACTLR_EL1 after it was written back");
    Ok(())
}

fn fp_arithmetic() -> Outcome {
    // fmov d0, x0; fmov d1, x1; fmul d0, d0, d1; fmov x0, d0
    let words = [0x9E67_0000, 0x9E67_0021, 0x1E61_0800, 0x9E66_0000];
    let mut registers = [0; 31];
    registers[0] = 1.5_f64.to_bits();
    registers[1] = 2.25_f64.to_bits();
    let fault = probe::run(&words, &mut registers);
    check!(fault.is_none(), "FP took an exception: {fault:x?}");
    check_eq!(registers[0], 3.375_f64.to_bits(), "1.5 * 2.25");
    // dup v0.4s, w1; add v0.4s, v0.4s, v0.4s; addv s0, v0.4s; fmov w0, s0
    let words = [0x4E04_0C20, 0x4EA0_8400, 0x4EB1_B800, 0x1E26_0000];
    registers[1] = 21;
    let fault = probe::run(&words, &mut registers);
    check!(fault.is_none(), "SIMD took an exception: {fault:x?}");
    check_eq!(registers[0], 21 * 8, "sum of a vector");
    Ok(())
}

/// PACIA and AUTIA undo each other under a key, and with another key do not (but for a rare collision of a few bits).
fn pointer_authentication() -> Outcome {
    let isar1 = mrs!("ID_AA64ISAR1_EL1");
    let isar2 = mrs!("S3_0_C0_C6_2");
    if field(isar1, 4) | field(isar1, 8) | field(isar2, 12) == 0 {
        skip!("no FEAT_PAuth");
    }
    const POINTER: u64 = 0x4008_0000;
    let sctlr = mrs!("SCTLR_EL1");
    // EnIA
    msr!("SCTLR_EL1", sctlr | 1 << 31);
    let mut registers = [0; 31];
    registers[0] = POINTER;
    let mut differed = 0;
    let mut undone = 0;
    for key in 0..8_u64 {
        msr!("S3_0_C2_C1_0", payload::random::mix(key));
        msr!("S3_0_C2_C1_1", payload::random::mix(!key));
        registers[0] = POINTER;
        registers[1] = 77;
        probe::run(&[0xDAC1_0020], &mut registers); // pacia x0, x1
        differed += u32::from(registers[0] != POINTER);
        probe::run(&[0xDAC1_1020], &mut registers); // autia x0, x1
        undone += u32::from(registers[0] == POINTER);
    }
    msr!("SCTLR_EL1", sctlr);
    check!(differed > 0, "PACIA changes nothing");
    check_eq!(undone, 8, "pointers that AUTIA restored, of 8");
    Ok(())
}
