//! The registers of the local APIC and the I/O APIC, each at any offset, by any access; and the APIC's page moved about.

use common::fail::Outcome;
use common::random::Random;

use crate::cpu::{self, run};
use crate::memory::{self, Target};
use crate::odd::odd;
use crate::{board, phase_machine, window};

const LOCAL: u64 = 0xfee0_0000;
const IO: u64 = 0xfec0_0000;

/// Whether stores to a register are avoided: the command register, with which the guest would reset itself.
/// It has its own phase, for interrupts.
fn is_spared(offset: u64) -> bool {
    (0x2c0..0x320).contains(&offset)
}

fn any(random: &mut Random, base: u64) -> u64 {
    let offset = match random.below(3) {
        0 => random.below(0x40) << 4,
        1 => 0xff0 + random.below(16),
        _ => random.below(0x1000),
    };
    base + if base != IO && is_spared(offset) { 0x80 } else { offset }
}

/// The phase "apics".
pub fn registers() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for round in phase_machine::share(900) {
            once(&mut random);
            if round % 16 == 0 {
                board::mask_inputs();
                cpu::restore();
            }
        }
        Ok(())
    })
}

/// The phase "bases": the page over RAM, the I/O APIC, the program, the end of the addresses; all modes, and changes between them.
pub fn bases() -> Outcome {
    cpu::on_all(|| {
        let mut random = phase_machine::random();
        for _ in phase_machine::share(150) {
            base_once(&mut random);
        }
        Ok(())
    })
}

/// An access to a register.
pub fn once(random: &mut Random) -> u64 {
    let base = random.pick(&[LOCAL, LOCAL, IO]);
    let address = window::wild(any(random, base), random.below(4) == 0);
    memory::access(random, address, if base == IO { Target::IoApic } else { Target::LocalApic });
    1
}

/// Another base, accesses there, and an MSR of the x2APIC's.
pub fn base_once(random: &mut Random) -> u64 {
    let base = match random.below(6) {
        0 => 0,
        1 => IO,
        2 => 0x10_0000 + (random.below(0x100) << 12),
        3 => LOCAL + 0x1000,
        4 => random.bits() & 0x000f_ffff_ffff_f000,
        _ => LOCAL,
    };
    let mut registers = [0; 16];
    let value = base | random.below(16) << 8;
    (registers[0], registers[1], registers[2]) = (value, 0x1b, value >> 32);
    run(&[0x0f, 0x30], registers);
    let base = random.pick(&[LOCAL, IO]);
    let address = window::wild(any(random, base), false);
    // Loads only: the page may be RAM now, which stores would change.
    registers[6] = address;
    run(&[0x8b, 0x06], registers);
    // And an MSR of the x2APIC's.
    registers = odd(random);
    registers[1] = 0x800 + random.below(0x40);
    run(&[0x0f, 0x32], registers);
    if registers[1] != 0x830 {
        run(&[0x0f, 0x30], registers);
    }
    cpu::restore();
    4
}
