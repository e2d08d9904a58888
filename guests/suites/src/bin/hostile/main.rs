//! Tries everything to break out of its VM, to crash the hypervisor, or to disturb a neighbour.
//!
//! Phases follow each other, most of them on all CPUs concurrently. Results of accesses are unchecked: an
//! access must only return, with or without an exception. The guest avoids operations that would break
//! itself; each phase documents them. It passes when it has finished with its own memory unchanged.
//!
//! Boot arguments: `seed=N` (default 1), `rounds=N` (default 1; each with the next seed), `only=NAME`: phases whose names contain NAME.
//! `soak=N`: N operations of all phases, mixed ([`soak`]).
#![no_std]
#![no_main]

mod bursts;
mod console;
mod cpus;
mod devices;
mod exceptions;
mod hypercalls;
mod instructions;
mod interrupts;
mod lost;
mod memory;
mod pages;
mod restore;
mod soak;
mod sysregs;
mod virt;
mod waiting;

use common::phases::{self, Phase, Plan};
use payload::entry::Entry;
use payload::harness::{self, Harness};
use payload::prelude::*;

use virt::Virt;

payload::program!(main);

const PHASES: [Phase; 14] = [
    ("sysregs", sysregs::registers),
    ("instructions-system", sysregs::instructions),
    ("hypercalls", hypercalls::run),
    ("memory", memory::wild),
    ("tables", memory::tables),
    ("devices", devices::run),
    ("interrupts", interrupts::storm),
    ("binary-points", interrupts::binary_points),
    ("timers", interrupts::timers),
    ("cpus", cpus::run),
    ("waiting", waiting::run),
    ("exceptions", exceptions::run),
    ("instructions", instructions::run),
    ("console", console::run),
];

fn main(entry: &Entry) -> ! {
    let harness = Harness::new("hostile", entry);
    let outcome = run();
    let mut harness = harness;
    harness.record("hostile", outcome);
    let status = harness.sum();
    // The last phase never returns.
    if machine::text("soak").is_none() {
        lost::run();
    }
    harness::exit(status)
}

fn run() -> Outcome {
    if let Some(operations) = machine::text("soak").and_then(|text| text.parse().ok()) {
        return soak::run(operations);
    }
    let (seed, rounds) = (machine::number("seed", 1), machine::number("rounds", 1));
    phases::run::<Virt>(&PHASES, &Plan { seed, rounds, only: machine::text("only").unwrap_or("") })
}
