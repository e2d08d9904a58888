//! Hypercalls: every function of the ranges that the SMC Calling Convention names, others at random, with odd
//! arguments, and every kind of call.

use payload::encode::{SMC, hvc};
use payload::prelude::*;
use payload::probe;
use payload::random::Random;

use crate::virt;

/// Functions that are avoided: they would end the run, or this CPU's part in it. CPU_ON has its own phase.
fn ends(function: u32) -> bool {
    // PSCI, both widths: CPU_SUSPEND, CPU_OFF, CPU_ON, SYSTEM_OFF, SYSTEM_RESET, CPU_FREEZE, CPU_DEFAULT_SUSPEND,
    // SYSTEM_SUSPEND, SYSTEM_RESET2, CLEAN_INV_MEMREGION.
    function & 0xBF00_0000 == 0x8400_0000 && matches!(function & 0xFFFF, 1..=3 | 8 | 9 | 0xB | 0xC | 0xE | 0x12 | 0x13)
}

fn call(word: u32, function: u64, random: &mut Random) {
    if ends(function as u32) {
        return;
    }
    let mut registers = core::array::from_fn(|_| random.odd());
    registers[0] = function;
    probe::run(&[word], &mut registers);
}

pub fn run() -> Outcome {
    smp::on_all(|| {
        let mut random = virt::random();
        // Each owner: architecture, CPU, SiP, OEM, standard, standard hypervisor, vendor hypervisor, applications, trusted OS.
        let owners = [0, 1, 2, 3, 4, 5, 6, 0x30, 0x32, 0x3F];
        for owner in owners.into_iter().skip(smp::this()).step_by(machine::cpus()) {
            for kind in [0, 0x4000_0000, 0x8000_0000, 0xC000_0000_u32] {
                for number in (0..0x20).chain([0x50, 0x51, 0x53, 0x7FFF, 0x8000, 0xFF00, 0xFF01, 0xFF03, 0xFFFF]) {
                    call(hvc(0), u64::from(kind | owner << 24 | number), &mut random);
                }
            }
        }
        for _ in virt::share(1_000) {
            once(&mut random);
        }
        Ok(())
    })
}

/// Any function that does not end the run.
pub fn function(random: &mut Random) -> u64 {
    loop {
        let number = random.below(0x20) | random.pick(&[0, 4 << 24, 5 << 24]);
        let function = match random.below(4) {
            0 => random.odd(),
            1 => random.odd() << 32 | 0x8401_0000 | number,
            _ => 0x8000_0000 | random.below(2) << 30 | number,
        };
        if !ends(function as u32) {
            return function;
        }
    }
}

/// Calls of any function.
pub fn once(random: &mut Random) -> u64 {
    let function = random.odd();
    call(hvc(0), function, random);
    // Reserved bits of the function identifier, SVE hint set, upper half.
    call(hvc(0), function << 32 | 0x8401_0000 | random.below(32), random);
    let immediate = random.odd() as u32;
    call(hvc(immediate), function, random);
    call(SMC | (immediate & 0xFFFF) << 5, function, random);
    // An existing function.
    call(hvc(0), 0x8000_0000 | random.below(2) << 30 | random.pick(&[0, 4 << 24, 5 << 24]) | random.below(0x20), random);
    5
}
