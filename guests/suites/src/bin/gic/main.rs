//! GICv3 and GICv2 conformance, for a guest with a single security state.
#![no_std]
#![no_main]

mod active;
mod expect;
mod gicv2;
mod group;
mod many;
mod priority;
mod registers;
mod route;
mod sgi;
mod spi;

use payload::entry::Entry;
use payload::gic;
use payload::harness::Harness;

payload::program!(main);

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("gic", entry);
    harness.run(gic::reset, registers::TESTS);
    harness.run(gic::reset, gicv2::TESTS);
    harness.run(gic::reset, sgi::TESTS);
    harness.run(gic::reset, spi::TESTS);
    harness.run(gic::reset, priority::TESTS);
    harness.run(gic::reset, active::TESTS);
    harness.run(gic::reset, group::TESTS);
    harness.run(gic::reset, route::TESTS);
    harness.run(gic::reset, many::TESTS);
    harness.end()
}
