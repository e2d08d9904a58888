//! Pointer-authentication keys: each CPU has its own, while others have their turns.

use payload::encode::Sysreg;
use payload::harness::Test;
use payload::prelude::*;
use payload::probe;
use payload::{mrs, tests, wait};

pub const TESTS: &[Test] = tests![own_keys];

/// APIAKeyLo_EL1 to APGAKeyHi_EL1.
const KEYS: [Sysreg; 10] = [
    Sysreg::new(3, 0, 2, 1, 0),
    Sysreg::new(3, 0, 2, 1, 1),
    Sysreg::new(3, 0, 2, 1, 2),
    Sysreg::new(3, 0, 2, 1, 3),
    Sysreg::new(3, 0, 2, 2, 0),
    Sysreg::new(3, 0, 2, 2, 1),
    Sysreg::new(3, 0, 2, 2, 2),
    Sysreg::new(3, 0, 2, 2, 3),
    Sysreg::new(3, 0, 2, 3, 0),
    Sysreg::new(3, 0, 2, 3, 1),
];
/// PACGA X0, X1, X2, which uses the key APGA whatever SCTLR_EL1 says.
const PACGA: u32 = 0x9AC2_3020;

/// The code of a constant under this CPU's key APGA.
fn code() -> u64 {
    let mut registers = probe::pattern(1);
    probe::run(&[PACGA], &mut registers);
    registers[0]
}

fn check_keys(expected: impl Fn(u64) -> u64, when: &str) -> Outcome {
    for (n, key) in KEYS.iter().enumerate() {
        check_eq!(probe::one(key.read(0), 0).0, expected(n as u64), "CPU {}: half {n} of the keys {when}", smp::this());
    }
    Ok(())
}

/// The first use on some CPUs is of an instruction, on others of a register. Keys are zero until a CPU wrote its own, though others have
/// written theirs: with fewer physical CPUs, in the same registers.
fn own_keys() -> Outcome {
    // APA, API, GPA, GPI.
    if mrs!("ID_AA64ISAR1_EL1") & (0xFF << 4 | 0xFF << 24) == 0 {
        return Ok(());
    }
    smp::on_all(|| {
        let this = smp::this() as u64;
        let mine = |n: u64| ((this + 1) << 32) | ((n + 1) * 0x0101);
        // Others write theirs meanwhile.
        wait::spin(3_000 * this);
        let unkeyed = if this.is_multiple_of(2) { Some(code()) } else { None };
        check_keys(|_| 0, "before they are written")?;
        for (n, key) in KEYS.iter().enumerate() {
            probe::one(key.write(0), mine(n as u64));
        }
        let keyed = code();
        check!(unkeyed != Some(keyed), "CPU {this}: the code does not depend on the key");
        for _ in 0..8 {
            wait::spin(2_000);
            check_keys(mine, "after other CPUs' turns")?;
            check_eq!(code(), keyed, "CPU {this}: the code after other CPUs' turns");
        }
        Ok(())
    })
}
