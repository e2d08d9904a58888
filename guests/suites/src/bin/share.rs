//! A neighbour that measures its share of a CPU. Exact if virtual time counts instructions.
//!
//! Boot arguments: `least=N`: the required percentage (default 1), `chunks=N`: the amount of computation
//! (default 4000).
#![no_std]
#![no_main]

use common::share;
use payload::entry::Entry;
use payload::harness::{self, Harness};
use payload::prelude::*;
use payload::timer::Timer;

payload::program!(main);

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("share", entry);
    harness.record("share", run());
    harness::exit(harness.sum())
}

fn run() -> Outcome {
    // Since the machine was turned on.
    println!("share: starts at tick {}", Timer::Virtual.count());
    let least = machine::number("least", 1);
    let percent = share::percent(|| Timer::Virtual.count(), compute, machine::number("chunks", 4000));
    println!("share: {percent} % of the CPU");
    check!(percent >= least, "{percent} % of the CPU, not {least}");
    Ok(())
}

/// 20,000 instructions.
fn compute() {
    // SAFETY: it counts a register down.
    unsafe { core::arch::asm!("2: subs {n}, {n}, #1", "b.ne 2b", n = inout(reg) 10_000u64 => _, options(nomem, nostack)) };
}
