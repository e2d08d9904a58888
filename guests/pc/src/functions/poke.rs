//! The other CPUs' part in an attack: accesses to the window and to configuration space while their content changes.

use common::random::Random;

use crate::function::{ECAM, Function, WINDOW, read, write};
use crate::{job, phase_machine};

/// Makes the other CPUs access the window until [`job::stop`].
pub fn start() {
    job::give(poke);
}

/// Accesses the window until [`job::stop`].
pub fn poke() {
    let mut random = phase_machine::random();
    job::until_stopped(|| once(&mut random));
}

/// Performs an access. Writes are at offsets of a page where `edu` has no register: a command to copy beyond its buffer would end the
/// emulator.
fn once(random: &mut Random) {
    let bytes = random.pick(&[1, 2, 4, 8]);
    let page = match random.below(8) {
        0 => ECAM - 4096,
        1 => WINDOW.start + (random.below(WINDOW.end - WINDOW.start) & !0xfff),
        _ => {
            let function = Function { device: 1 + random.below(4) };
            function.place(random.below(6)) + random.below(4) * 4096
        }
    };
    let offset = match random.below(4) {
        0 => 0x800,
        1 => 4096 - bytes,
        _ => 0x100 + random.below(4096 - 0x108),
    };
    match random.below(3) {
        0 => write(page + offset, bytes, random.odd()),
        1 => {
            read(page + random.below(4096 - 8), bytes);
        }
        _ => {
            read(ECAM + random.below((1 << 20) - 8), bytes);
        }
    }
}
