//! The devices' registers, each at any offset, by any size, with any value.

use payload::board::{GICC, GICD, GICR, GICR_STRIDE, RTC, UART};
use payload::encode::{UNDECODABLE, load, store};
use payload::prelude::*;
use payload::random::Random;
use payload::{console, probe};

use crate::virt;

/// Whether a write is avoided because its effect would be taken for a failure.
pub fn spares(address: u64, size: u32) -> bool {
    let end = address + (1 << size);
    // The UART's data register: random output would hide the guest's own. It has its own phase.
    if address < UART + 4 && end > UART {
        return true;
    }
    // GICR_CTLR.EnableLPIs: on a machine with LPIs the GIC would use tables in the guest's memory, which the
    // guest has not set up.
    let in_redistributor = (GICR..UART).contains(&address);
    in_redistributor && address % GICR_STRIDE < 4
}

pub fn run() -> Outcome {
    smp::on_all(|| {
        let mut random = virt::random();
        for _ in virt::share(8_000) {
            once(&mut random);
        }
        Ok(())
    })
}

/// One access. One to the UART is made with exclusive access to the console, and restores the UART.
pub fn once(random: &mut Random) -> u64 {
    let redistributors = GICR_STRIDE * machine::cpus() as u64;
    // The other controller's frame is unmapped, so that an access to it would end the VM.
    let gic = if machine::is_gicv2() { (GICC, 0x2000) } else { (GICR, redistributors) };
    let (base, length) = random.pick(&[(GICD, 0x1_0000), (GICD, 0x1000), gic, (UART, 0x1000), (RTC, 0x1000)]);
    let offset = match random.below(4) {
        0 => random.below(0x100),
        1 => length - 0x30 + random.below(0x30),
        _ => random.below(length),
    };
    let size = random.below(4) as u32;
    // Mostly aligned: device memory takes an alignment fault otherwise.
    let mask = if random.below(8) == 0 { 0 } else { (1 << size) - 1 };
    let address = (base + offset) & !mask;
    let mut registers = core::array::from_fn(|_| random.odd());
    registers[1] = address;
    let word = match random.below(8) {
        0 => random.pick(&UNDECODABLE).1,
        1..=4 => load(size, random.below(32) as u32, 1),
        _ => store(size, random.below(32) as u32, 1),
    };
    // Wider and pre-indexed forms reach 16 bytes further.
    let stores = word >> 22 & 3 == 0;
    if stores && (spares(address, 4) || spares(address & !15, 4)) {
        return 0;
    }
    let mut access = || {
        probe::run(&[word], &mut registers);
    };
    if base == UART {
        console::exclusively(access)
    } else {
        access()
    }
    1
}
