//! The guest's view of its CPU: identification, hidden features, exceptions, unmapped memory, device accesses
//! by every instruction form.
//!
//! The rule under test: ID registers and behaviour agree, so absent features are undefined. Features hidden
//! by Stile in particular are tested with the boot argument `stile` only.
#![no_std]
#![no_main]

mod absent;
mod debug;
mod el0;
mod exceptions;
mod id;
mod keys;
mod memory;
mod mmio;
mod moves;

use payload::entry::Entry;
use payload::gic;
use payload::harness::Harness;

payload::program!(main);

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("regs", entry);
    // Before tests that write keys.
    harness.run(gic::reset, keys::TESTS);
    harness.run(gic::reset, id::TESTS);
    harness.run(gic::reset, absent::TESTS);
    harness.run(gic::reset, moves::TESTS);
    harness.run(gic::reset, exceptions::TESTS);
    harness.run(gic::reset, el0::TESTS);
    harness.run(gic::reset, debug::TESTS);
    harness.run(gic::reset, memory::TESTS);
    harness.run(gic::reset, mmio::TESTS);
    harness.end()
}
