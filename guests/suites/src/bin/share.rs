//! The neighbour that measures which part of a CPU it gets. Where virtual time counts instructions, that is exact.
//!
//! Boot arguments: `least=N`: the percentage that it must get (default 1), `chunks=N`: how much it computes (default 4000).
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
