//! PSCI, and the SMC Calling Convention around it.
#![no_std]
#![no_main]

mod calls;
mod convention;
mod cpus;
mod suspend;

use payload::entry::Entry;
use payload::gic;
use payload::harness::Harness;

payload::program!(main);

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("psci", entry);
    harness.run(gic::reset, calls::TESTS);
    harness.run(gic::reset, convention::TESTS);
    harness.run(gic::reset, suspend::TESTS);
    harness.run(gic::reset, cpus::TESTS);
    harness.end()
}
