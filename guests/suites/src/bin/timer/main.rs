//! The virtual and the physical timer of EL1.
#![no_std]
#![no_main]

mod counter;
mod each;
mod interrupt;
mod several;

use payload::entry::Entry;
use payload::gic;
use payload::harness::Harness;
use payload::timer::Timer;

payload::program!(main);

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("timer", entry);
    harness.run(before, counter::TESTS);
    harness.run(before, each::TESTS);
    harness.run(before, interrupt::TESTS);
    harness.run(before, several::TESTS);
    harness.end()
}

/// Timers off, the GIC in a known state with the timers' interrupts enabled, and a handler that stops the timer that fired.
fn before() {
    for timer in Timer::ALL {
        timer.stop();
    }
    gic::reset();
    each::listen();
}
