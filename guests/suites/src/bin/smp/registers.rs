//! System registers of each CPU's own survive while CPUs are shared.

use payload::exception::catch;
use payload::harness::Test;
use payload::prelude::*;
use payload::random::mix;
use payload::tests;

use crate::fp::HOLD;

pub const TESTS: &[Test] = tests![system_registers];

/// A register and the bits that the test may change. Unimplemented and read-only bits are excluded by reading
/// back.
struct Row {
    name: &'static str,
    read: fn() -> u64,
    write: fn(u64),
    bits: u64,
}

macro_rules! rows {
    ($($name:literal $bits:expr),* $(,)?) => {
        [$(Row { name: $name, read: || mrs!($name), write: |value| msr!($name, value), bits: $bits }),*]
    };
}

const ALL: u64 = u64::MAX;

static ROWS: [Row; 52] = rows![
    "TPIDR_EL0" ALL,
    "TPIDRRO_EL0" ALL,
    "TPIDR_EL1" ALL,
    "CONTEXTIDR_EL1" 0xFFFF_FFFF,
    "SP_EL0" ALL,
    "ELR_EL1" ALL,
    "SPSR_EL1" 0xF000_0000,
    "ESR_EL1" 0xFFFF_FFFF,
    "FAR_EL1" ALL,
    "AFSR0_EL1" ALL,
    "AFSR1_EL1" ALL,
    "AMAIR_EL1" ALL,
    // Attributes that no mapping uses.
    "MAIR_EL1" 0xFFFF_FFFF_0000_0000,
    "PAR_EL1" ALL,
    // TCR_EL1.EPD1 is set: it is not walked.
    "TTBR1_EL1" 0xFF_FFFF_F000,
    "CSSELR_EL1" 1,
    "CNTKCTL_EL1" 0x303,
    "CNTV_CVAL_EL0" ALL,
    "CNTP_CVAL_EL0" ALL,
    // Breakpoints and watchpoints are written with their enable bit 0, MDSCR_EL1 with monitor debug off.
    "MDSCR_EL1" 1 << 12,
    "MDCCINT_EL1" 3 << 29,
    "DBGBVR0_EL1" 0xFFFF_FFFF_FFFC,
    "DBGBCR0_EL1" 0x1E6,
    "DBGBVR1_EL1" 0xFFFF_FFFF_FFFC,
    "DBGBCR1_EL1" 0x1E6,
    "DBGWVR0_EL1" 0xFFFF_FFFF_FFFC,
    "DBGWCR0_EL1" 0x1FFE,
    "DBGWVR1_EL1" 0xFFFF_FFFF_FFFC,
    "DBGWCR1_EL1" 0x1FFE,
    // ICC_PMR, BPR0, BPR1, CTLR, IGRPEN0.
    "S3_0_C4_C6_0" 0xF8,
    "S3_0_C12_C8_3" 7,
    "S3_0_C12_C12_3" 7,
    "S3_0_C12_C12_4" 3,
    "S3_0_C12_C12_6" 1,
    // Pointer authentication keys.
    "S3_0_C2_C1_0" ALL,
    "S3_0_C2_C1_1" ALL,
    "S3_0_C2_C1_2" ALL,
    "S3_0_C2_C1_3" ALL,
    "S3_0_C2_C2_0" ALL,
    "S3_0_C2_C2_1" ALL,
    "S3_0_C2_C2_2" ALL,
    "S3_0_C2_C2_3" ALL,
    "S3_0_C2_C3_0" ALL,
    "S3_0_C2_C3_1" ALL,
    // SCXTNUM_EL1, SCXTNUM_EL0, TPIDR2_EL0.
    "S3_0_C13_C0_7" ALL,
    "S3_3_C13_C0_7" ALL,
    "S3_3_C13_C0_5" ALL,
    // Memory tagging: GCR_EL1, RGSR_EL1, TFSR_EL1, TFSRE0_EL1.
    "S3_0_C1_C0_6" 0x1_FFFF,
    "S3_0_C1_C0_5" 0xFF_FF0F,
    "S3_0_C5_C6_0" 3,
    "S3_0_C5_C6_1" 3,
    // PMSELR_EL0.
    "S3_3_C9_C12_5" 0x1F,
];

fn system_registers() -> Outcome {
    smp::on_all(|| {
        let this = smp::this() as u64;
        let saved: [u64; ROWS.len()] = core::array::from_fn(|n| {
            let mut value = 0;
            catch(|| value = (ROWS[n].read)());
            value
        });
        let exists: [bool; ROWS.len()] = core::array::from_fn(|n| {
            catch(|| {
                (ROWS[n].write)((ROWS[n].read)());
            })
            .is_none()
        });
        let mut outcome = Ok(());
        for round in 0..25 {
            outcome = outcome.and(hold(mix(this << 32 | round), &saved, &exists));
        }
        for (n, row) in ROWS.iter().enumerate().filter(|(n, _)| exists[*n]) {
            (row.write)(saved[n]);
        }
        gic::reset_cpu();
        outcome
    })
}

/// Fills the registers, waits, and compares. No exception may be taken in between: it would change some of them.
fn hold(seed: u64, saved: &[u64; ROWS.len()], exists: &[bool; ROWS.len()]) -> Outcome {
    let mut wanted = [0; ROWS.len()];
    let rows = || ROWS.iter().enumerate().filter(|(n, _)| exists[*n]);
    for (n, row) in rows() {
        (row.write)(saved[n] & !row.bits | mix(seed ^ n as u64) & row.bits);
    }
    for (n, row) in rows() {
        wanted[n] = (row.read)();
    }
    wait::spin(HOLD);
    for (n, row) in rows() {
        let found = (row.read)();
        check!(found == wanted[n], "CPU {}: {} is {found:#x}, expected {:#x}", smp::this(), row.name, wanted[n]);
    }
    Ok(())
}
