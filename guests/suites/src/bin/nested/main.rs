//! A small hypervisor at EL2 with VHE, whose VMs run a few instructions at a time: conformance of EL2, and
//! hostile behaviour.
//!
//! Boot arguments: `only=NAME`. `vms=N`: number of VMs to start and end (default 1000). `seed=N` (default 1),
//! `rounds=N` (default 1): of the wild phases. `soak=N`: only N operations of the wild phases, mixed
//! ([`soak`]). `reset`: only a reset while a CPU runs L2 ([`reset`]).
#![no_std]
#![no_main]

mod bounds;
mod debug;
mod enter;
mod fine;
mod guest;
mod hcr;
mod layout;
mod lists;
mod lives;
mod memory;
mod reset;
mod restore;
mod soak;
mod stage2;
mod timers;
mod traps;
mod wild;

use payload::entry::Entry;
use payload::harness::Harness;
use payload::prelude::*;

payload::program!(main);

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("nested", entry);
    if let Some(operations) = machine::text("soak").and_then(|text| text.parse().ok()) {
        harness.record("soak", soak::run(operations));
    } else if machine::has("reset") {
        reset::run(&mut harness);
    } else if machine::at_el2() {
        for tests in [
            enter::TESTS,
            memory::TESTS,
            traps::TESTS,
            fine::TESTS,
            debug::TESTS,
            lists::TESTS,
            timers::TESTS,
            lives::TESTS,
            bounds::TESTS,
            wild::TESTS,
        ] {
            harness.run(restore::prepare, tests);
        }
    } else {
        harness.record("el2", Err(Fail::new(format_args!("there is no EL2"))));
    }
    harness.end()
}
