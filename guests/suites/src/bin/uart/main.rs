//! The PL011 UART and the PL031 clock.
#![no_std]
#![no_main]

mod clock;
mod identification;
mod listen;
mod receive;
mod transmit;

use payload::entry::Entry;
use payload::gic;
use payload::harness::Harness;
use payload::uart;

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
