//! BARs over RAM, the APICs, configuration space, other BARs and the ends of the window, while other CPUs access the window.

use common::fail::Outcome;
use common::{check, check_eq};
use pc::lapic::{self, register};

use crate::function::{ECAM, Function, RAM, WINDOW, read, write};
use crate::{phase_machine, poke};

/// RAM that BARs are placed over.
const COVERED: u64 = 40 << 20;

/// The phase "bars".
pub fn run() -> Outcome {
    let mut random = phase_machine::random();
    let functions = Function::all().count() as u64;
    let version = lapic::read(register::VERSION);
    let id = lapic::id();
    poke::start();
    for attempt in 0..800u64 {
        let function = Function { device: 1 + random.below(functions) };
        let other = Function { device: 1 + random.below(functions) };
        let (bar, near) = (random.below(6), random.below(6));
        let place = match random.below(16) {
            0 => 0,
            1 => 1 << 20,
            2 => COVERED,
            3 => 0xfee0_0000,
            4 => 0xfec0_0000,
            5 => ECAM,
            6 => WINDOW.end - 4096,
            7 => WINDOW.end - (16 << 10),
            8 => WINDOW.end - (1 << 20),
            9 => WINDOW.start,
            10 => WINDOW.start - 4096,
            11 => u64::MAX,
            12 => RAM,
            13 => other.place(near) + 4096 * random.below(4),
            14 => random.bits(),
            _ => other.place(near),
        };
        if random.below(3) == 0 {
            function.enable(false);
        }
        function.write(0x10 + 4 * bar, place as u32);
        if random.below(2) == 0 {
            function.write(0x10 + 4 * ((bar + 1) % 6), (place >> 32) as u32);
        }
        if random.below(4) != 0 {
            function.enable(true);
        }
        write(COVERED, 8, attempt);
        check_eq!(read(COVERED, 8), attempt, "RAM under a BAR");
        check!(lapic::read(register::VERSION) == version && lapic::id() == id, "the APIC under a BAR changed");
        if random.below(64) == 0 {
            Function::all().for_each(Function::connect);
        }
    }
    Ok(())
}
