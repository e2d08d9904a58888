//! Is saved, restored and paused while both CPUs take timer interrupts, and memory and registers hold patterns.
//!
//! Ends once its virtual counter has been held as often as the boot argument `holds=N` (default 2) says. `spread=N`: the pattern
//! is in a page of each of N blocks of 2 MiB, instead of contiguous memory.
#![no_std]
#![no_main]

use common::canary;
use common::pause::Clocks;
use payload::entry::Entry;
use payload::gic::{self, Bits};
use payload::harness::{self, Harness};
use payload::prelude::*;
use payload::timer::Timer;
use payload::{instruction, uart};

payload::program!(main);

/// Memory with a pattern, in words.
const WORDS: usize = (1 << 20) / 8;

/// With `spread`: bytes of a block, and words of a page.
const BLOCK: usize = 2 << 20;
const PAGE: usize = 4096 / 8;

/// Interrupts that each CPU takes in a round.
const SHOTS: usize = 20;

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("snapshot", entry);
    harness.record("snapshot", run());
    harness::exit(harness.sum())
}

fn run() -> Outcome {
    smp::need(2)?;
    gic::reset();
    let free = machine::free_ram();
    let spread = machine::number("spread", 0) as usize;
    check!(spread * BLOCK <= (free.end - free.start) as usize, "{spread} blocks are more than there are");
    // SAFETY: otherwise unused: it lies after the image and beside the device tree. One is in use at a time, and each but the
    // first is in a block of its own.
    let words = |block: usize, words| unsafe { core::slice::from_raw_parts_mut((free.start as usize + block * BLOCK) as *mut u64, words) };
    let pattern = |block| words(block, if spread == 0 { WORDS } else { PAGE });
    let blocks = 0..spread.max(1);
    let wanted = machine::number("holds", 2);
    // The virtual counter, which a pause stops, and the physical one.
    let clocks = Clocks { held: || Timer::Virtual.count(), running: || Timer::Physical.count(), slack: wait::ticks(1_000) };
    let (mut holds, mut watch, mut round) = (0, clocks.watch(), 0);
    let mut last = (wait::now(), uart::pl031::DR.read());
    while holds < wanted {
        round += 1;
        blocks.clone().for_each(|block| canary::fill(pattern(block), round + block as u64));
        smp::give(1, shots);
        shots()?;
        smp::join(1)?;
        blocks.clone().try_for_each(|block| canary::check(pattern(block), round + block as u64))?;
        let now = (wait::now(), uart::pl031::DR.read());
        check!(now.0 > last.0, "round {round}: the virtual counter went back from {} to {}", last.0, now.0);
        check!(now.1 >= last.1, "round {round}: the clock went back from {} to {}", last.1, now.1);
        last = now;
        println!("snapshot: round {round}");
        if watch.gained().is_some() {
            holds += 1;
            println!("snapshot: hold {holds}");
        }
    }
    Ok(())
}

/// Takes interrupts of the virtual and the physical timer in WFI.
fn shots() -> Outcome {
    let this = smp::this();
    gic::reset_cpu();
    irq::clear();
    irq::set_hook(|intid| {
        if let Some(timer) = Timer::of(intid) {
            timer.stop();
        }
    });
    Timer::ALL.into_iter().for_each(|timer| gic::set_on(this, Bits::Enable, timer.intid()));
    for shot in 0..SHOTS {
        let timer = Timer::ALL[shot % 2];
        timer.start(2_000);
        // Interrupts are masked from the check to the wait, which a pending one ends.
        while irq::count(this) == shot {
            instruction!("wfi");
            irq::take();
        }
        check_eq!(irq::nth(this, shot), timer.intid(), "shot {shot} of CPU {this}");
    }
    Ok(())
}
