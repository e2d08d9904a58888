//! Random accesses to configuration space, by memory and by ports, while other CPUs access the window.

use common::check_eq;
use common::fail::Outcome;
use pc::machine;

use crate::function::{ECAM, Function, read, write};
use crate::{job, phase_machine, poke};

/// The phase "config".
pub fn run() -> Outcome {
    let mut random = phase_machine::random();
    let devices = Function::all().count() as u64;
    let ids: [u32; 8] = core::array::from_fn(|device| Function { device: device as u64 }.read(0));
    poke::start();
    for _ in 0..1500 {
        let bytes = random.pick(&[1, 2, 4, 8]);
        let offset = match random.below(8) {
            0 => random.below((1 << 20) - 8),
            // Function-level reset, power states and the rest of the capabilities.
            1..=3 => ((1 + random.below(devices)) << 15) + 0x40 + random.below(0xc0),
            4 => (1 + random.below(devices)) << 15 | random.below(8) << 12 | random.below(4096 - 8),
            _ => (1 + random.below(devices)) << 15 | random.below(0x40),
        };
        if random.below(3) == 0 {
            read(ECAM + offset, bytes);
        } else {
            write(ECAM + offset, bytes, random.odd());
        }
        if random.below(8) == 0 {
            // SAFETY: PCI's older way to configuration space, whose effects are the attack.
            unsafe {
                machine::out32(0xcf8, 1 << 31 | random.bits() as u32 & 0xff_fffc);
                machine::out32(0xcfc, random.odd() as u32);
                machine::in32(0xcfc + random.below(4) as u16);
            }
        }
    }
    job::stop();
    for (device, id) in ids.into_iter().enumerate() {
        check_eq!(Function { device: device as u64 }.read(0), id, "vendor and device of device {device}");
    }
    Ok(())
}
