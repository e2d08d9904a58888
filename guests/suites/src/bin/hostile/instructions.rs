//! Instructions of features that the guest may not have: SVE, SME, memory tagging, and anything in the space of FP, SIMD and SVE.

use payload::encode::NOP;
use payload::prelude::*;
use payload::probe;
use payload::random::Random;

use crate::{restore, virt};

/// Single instructions; x1 holds an address of the guest's own.
const LIST: [u32; 18] = [
    0x04BF_5020, // rdvl x0, #1
    0x2518_E3E0, // ptrue p0.b
    0x2528_9000, // wrffr p0.b
    0x0520_3822, // dup z2.b, w1
    0xD503_477F, // smstart
    0xD503_467F, // smstop
    0xC008_00FF, // zero {za}
    0x8080_0000, // fmopa za0.s, p0/m, p0/m, z0.s, z0.s
    0x9AC0_1020, // irg x0, x1, x0
    0xD920_0821, // stg x1, [x1]
    0xD960_0022, // ldg x2, [x1]
    0xD9A0_0822, // st2g x2, [x1]
    0xD503_233F, // paciasp
    0xD503_23BF, // autiasp
    0xD503_245F, // bti c
    0xD53B_2402, // mrs x2, RNDR
    0xD503_225F, // tsb csync
    0xD503_2600, // a hint without a meaning
];

/// A word of a space whose instructions compute only. Those that set the stack pointer (ADDVL, ADDPL and their streaming forms) are spared.
fn computes(random: &mut Random) -> u32 {
    let word = random.bits() as u32;
    let word = match random.below(4) {
        // FP and SIMD data processing.
        0 | 1 => word & !(0xF << 25) | 0x7 << 25 | (word & 1) << 28,
        // SVE, without loads and stores.
        2 => word & 0x61FF_FFFF | 0x2 << 25,
        // SME, without loads and stores.
        _ => word & 0x01FF_FFFF | 0xC000_0000,
    };
    if word & 0xFFA0_F000 == 0x0420_5000 { NOP } else { word }
}

pub fn run() -> Outcome {
    smp::on_all(|| {
        let mut random = virt::random();
        for _ in virt::share(300) {
            once(&mut random);
        }
        restore::restore_cpu();
        Ok(())
    })
}

/// Some of them in a row.
pub fn once(random: &mut Random) -> u64 {
    static BUFFER: [u64; 64] = [0; 64];
    let words: [u32; 32] = core::array::from_fn(|_| if random.below(4) == 0 { random.pick(&LIST) } else { computes(random) });
    let mut registers = core::array::from_fn(|_| random.odd());
    registers[1] = BUFFER.as_ptr() as u64;
    // Earlier instructions may have changed x1: one of the list is executed with the original x1, too.
    probe::run(&words, &mut registers);
    registers[1] = BUFFER.as_ptr() as u64;
    probe::run(&[random.pick(&LIST)], &mut registers);
    33
}
