//! Several CPUs: shared memory, shared and private translations, and private state.
//!
//! Most tests keep all CPUs busy for some tenths of a second of the virtual counter, so that vCPUs that share
//! a CPU are switched many times while they hold values that must be preserved.
#![no_std]
#![no_main]

mod address_spaces;
mod fp;
mod ipi;
mod locks;
mod registers;
mod shootdown;
mod sve;

use core::sync::atomic::{AtomicU32, Ordering::*};

use payload::entry::Entry;
use payload::harness::{self, Harness};
use payload::{gic, machine, smp};

payload::program!(main);

static STATUS: AtomicU32 = AtomicU32::new(0);

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("smp", entry);
    harness.run(gic::reset, locks::TESTS);
    harness.run(gic::reset, ipi::TESTS);
    harness.run(gic::reset, shootdown::TESTS);
    harness.run(gic::reset, address_spaces::TESTS);
    harness.run(gic::reset, fp::TESTS);
    harness.run(gic::reset, sve::TESTS);
    harness.run(gic::reset, registers::TESTS);
    STATUS.store(harness.sum(), Release);
    let last = machine::cpus() - 1;
    if last == 0 || smp::start_all().is_err() {
        harness::exit(STATUS.load(Acquire))
    }
    // Any CPU must be able to end the machine.
    smp::give(last, || harness::exit(STATUS.load(Acquire)));
    loop {
        core::hint::spin_loop();
    }
}
