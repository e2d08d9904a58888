//! The PL011 UART and the PL031 clock.
#![no_std]
#![no_main]

mod clock;
mod receive;
mod transmit;

use payload::entry::Entry;
use payload::gic;
use payload::harness::Harness;
use payload::prelude::*;
use payload::uart::{self, Reg32};

payload::program!(main);

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("uart", entry);
    harness.run(before, transmit::TESTS);
    harness.run(before, receive::TESTS);
    harness.run(before, clock::TESTS);
    uart::init();
    harness.end()
}

fn before() {
    gic::reset();
    uart::init();
}

/// Peripheral and PrimeCell identification: four bytes each, one per word. The revision, the upper half of
/// the third, is not compared.
fn identification(registers: u64, wanted: [u32; 4]) -> Outcome {
    for (n, wanted) in wanted.into_iter().enumerate() {
        let found = Reg32(registers + 4 * n as u64).read();
        // Stile's PL011 has a later revision than QEMU's.
        let revision = if n == 2 && wanted & 0xF0 == 0 { 0xF0 } else { 0 };
        check_eq!(found & !revision, wanted, "identification {:#x}", registers + 4 * n as u64);
    }
    Ok(())
}

/// Routes a device's SPI to this CPU, level-sensitive.
fn listen(intid: u32) {
    gic::clear(gic::Bits::Enable, intid);
    gic::set_edge(intid, false);
    gic::route(intid, smp::this());
    gic::set(gic::Bits::Enable, intid);
}
