//! SVE registers survive while CPUs are shared, also when each CPU uses another vector length.

use payload::harness::Test;
use payload::prelude::*;
use payload::random::mix;
use payload::tests;

use crate::fp::{HOLD, ROUNDS};

pub const TESTS: &[Test] = tests![sve_longest, sve_lengths];

unsafe extern "C" {
    fn sve_load(vectors: *const u64, predicates: *const u64);
    fn sve_store(vectors: *mut u64, predicates: *mut u64);
    fn sve_length() -> u64;
}

/// The registers at the longest vector that the architecture has, 256 bytes: 32 vectors, 16 predicates and FFR.
#[repr(C, align(16))]
struct Registers {
    vectors: [u64; 32 * 32],
    predicates: [u64; 17 * 4],
}

const ZERO: Registers = Registers { vectors: [0; 1024], predicates: [0; 68] };

fn need_sve() -> Outcome {
    if mrs!("ID_AA64PFR0_EL1") >> 32 & 0xF == 0 {
        skip!("no FEAT_SVE");
    }
    Ok(())
}

/// Enables SVE on this CPU with vectors of up to (`length` + 1) * 16 bytes, and returns their size in bytes.
fn enable(length: u64) -> u64 {
    msr!("CPACR_EL1", mrs!("CPACR_EL1") | 3 << 16);
    // ZCR_EL1
    msr!("S3_0_C1_C2_0", length);
    // SAFETY: CPACR_EL1 has just enabled SVE, which the CPU has.
    unsafe { sve_length() }
}

fn hold(length: u64) -> Outcome {
    let this = smp::this() as u64;
    let bytes = enable(length) as usize;
    check!(bytes >= 16 && bytes <= 16 * (length as usize + 1), "CPU {this}: vectors of {bytes} bytes with ZCR_EL1.LEN {length}");
    let words = 32 * bytes / 8;
    // Predicate registers have a bit for each byte, and follow each other without a gap.
    let predicate_bytes = 17 * bytes / 8;
    for round in 0..ROUNDS {
        let seed = mix(this << 32 | round << 8 | length);
        let mut pattern = ZERO;
        for (n, word) in pattern.vectors[..words].iter_mut().enumerate() {
            *word = mix(seed ^ n as u64);
        }
        for (n, word) in pattern.predicates.iter_mut().enumerate() {
            *word = mix(seed ^ 0x1_0000 ^ n as u64);
        }
        // FFR must be ones up to a place, and zeroes from there; here, all ones or all zeroes.
        let bytes_of = |predicates: &mut [u64; 68]| predicates.as_mut_ptr().cast::<u8>();
        let ffr = 16 * bytes / 8;
        // SAFETY: FFR lies inside the array at any vector length.
        unsafe { bytes_of(&mut pattern.predicates).add(ffr).write_bytes(if round % 2 == 0 { 0xFF } else { 0 }, bytes / 8) };
        let mut found = ZERO;
        // SAFETY: the arrays hold the registers at the longest vector length.
        unsafe { sve_load(pattern.vectors.as_ptr(), pattern.predicates.as_ptr()) };
        wait::spin(HOLD);
        // SAFETY: the arrays hold the registers at the longest vector length.
        unsafe { sve_store(found.vectors.as_mut_ptr(), found.predicates.as_mut_ptr()) };
        for n in 0..words {
            check!(found.vectors[n] == pattern.vectors[n], "CPU {this}, round {round}: z{} of {bytes} bytes changed", n * 8 / bytes);
        }
        for n in 0..predicate_bytes {
            // SAFETY: `n` is below `predicate_bytes`, which is at most the size of both arrays.
            let same = unsafe { *bytes_of(&mut found.predicates).add(n) == *bytes_of(&mut pattern.predicates).add(n) };
            check!(same, "CPU {this}, round {round}: predicate {} (16: FFR) changed", n * 8 / bytes);
        }
        check_eq!(mrs!("S3_0_C1_C2_0"), length, "CPU {this}: ZCR_EL1");
    }
    Ok(())
}

fn sve_longest() -> Outcome {
    need_sve()?;
    smp::on_all(|| hold(15))
}

fn sve_lengths() -> Outcome {
    need_sve()?;
    smp::on_all(|| hold(smp::this() as u64))
}
