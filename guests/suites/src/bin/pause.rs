//! Waits to be paused: the virtual counter stops meanwhile, the physical one continues.
#![no_std]
#![no_main]

use common::pause::Clocks;
use payload::entry::Entry;
use payload::harness::{self, Harness};
use payload::prelude::*;
use payload::timer::Timer;

payload::program!(main);

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("pause", entry);
    harness.record("pause", run());
    harness::exit(harness.sum())
}

fn run() -> Outcome {
    let (held, running) = (|| Timer::Virtual.count(), || Timer::Physical.count());
    let mut watch = Clocks { held, running, slack: wait::ticks(20_000) }.watch();
    for pause in 1..=2 {
        println!("pause: waiting for pause {pause}");
        println!("pause: pause {pause}: {} ticks", watch.wait());
    }
    Ok(())
}
