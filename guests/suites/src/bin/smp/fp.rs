//! FP and SIMD registers survive while CPUs are shared.

use payload::harness::Test;
use payload::prelude::*;
use payload::random::mix;
use payload::tests;

pub const TESTS: &[Test] = tests![fp_registers, fp_trap_state];

core::arch::global_asm!(include_str!("fp.s"));

unsafe extern "C" {
    fn fp_load(registers: *const Vectors);
    fn fp_store(registers: *mut Vectors);
}

/// v0 to v31.
#[repr(C, align(16))]
struct Vectors([u64; 64]);

/// Time that a CPU holds its pattern, in microseconds.
pub const HOLD: u64 = 4_000;
/// Number of patterns that a CPU loads.
pub const ROUNDS: u64 = 30;

/// FPCR: rounding modes, flush to zero, default NaN.
fn fpcr(seed: u64) -> u64 {
    seed << 22 & (0xF << 22)
}

/// FPSR: cumulative flags.
fn fpsr(seed: u64) -> u64 {
    seed & 0x1F | (seed >> 5 & 1) << 27
}

fn fp_registers() -> Outcome {
    smp::on_all(|| {
        let this = smp::this() as u64;
        for round in 0..ROUNDS {
            let seed = mix(this << 32 | round);
            let pattern = Vectors(core::array::from_fn(|n| mix(seed ^ n as u64)));
            let mut found = Vectors([0; 64]);
            // SAFETY: the compiler uses no FP register. 32 registers of 16 bytes are read.
            unsafe { fp_load(&pattern) };
            msr!("S3_3_C4_C4_0", fpcr(seed));
            msr!("S3_3_C4_C4_1", fpsr(seed));
            wait::spin(HOLD);
            // SAFETY: 32 registers of 16 bytes are written.
            unsafe { fp_store(&mut found) };
            check_eq!(mrs!("S3_3_C4_C4_0"), fpcr(seed), "CPU {this}, round {round}: FPCR");
            check_eq!(mrs!("S3_3_C4_C4_1"), fpsr(seed), "CPU {this}, round {round}: FPSR");
            for (n, (found, wanted)) in found.0.iter().zip(&pattern.0).enumerate() {
                check!(found == wanted, "CPU {this}, round {round}: v{} is {found:#x}, expected {wanted:#x}", n / 2);
            }
        }
        msr!("S3_3_C4_C4_0", 0);
        Ok(())
    })
}

/// A guest's own FP trap (CPACR_EL1) is still enabled after a switch, and its registers are preserved.
fn fp_trap_state() -> Outcome {
    smp::on_all(|| {
        let this = smp::this() as u64;
        let pattern = Vectors(core::array::from_fn(|n| mix(this << 40 | n as u64)));
        let mut found = Vectors([0; 64]);
        // SAFETY: the compiler uses no FP register, and the array has all of them.
        unsafe { fp_load(&pattern) };
        let cpacr = mrs!("CPACR_EL1");
        msr!("CPACR_EL1", cpacr & !(3 << 20));
        wait::spin(5 * HOLD);
        let (_, fault) = payload::probe::one(0x9E66_0000, 0); // fmov x0, d0
        msr!("CPACR_EL1", cpacr);
        let class = fault.map(|fault| fault.class());
        check!(class == Some(payload::exception::EC_FP), "CPU {this}: FP with CPACR_EL1.FPEN 0 gave {class:?}");
        // SAFETY: the compiler uses no FP register, and the array holds all of them.
        unsafe { fp_store(&mut found) };
        check!(found.0 == pattern.0, "CPU {this}: FP registers changed while FP was trapped");
        Ok(())
    })
}
