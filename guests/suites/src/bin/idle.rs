//! Waits for an interrupt that never comes.
//!
//! Boot argument: `timers`: its timers have expired, and are masked.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::timer::{ENABLE, IMASK, Timer};
use payload::{instruction, machine, println};

payload::program!(main);

fn main(_: &Entry) -> ! {
    if machine::has("timers") {
        for timer in Timer::ALL {
            timer.set_deadline(0);
            timer.set_control(ENABLE | IMASK);
        }
    }
    println!("idle: waiting, with no interrupt enabled");
    loop {
        instruction!("wfi");
    }
}
