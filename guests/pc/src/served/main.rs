//! A served device: a driver and a server of virtio-blk, each in a VM of its own, and a hostile driver.
//!
//! Command line: `driver` writes and reads the disk, through a reset of each side, and then ends; with `again` it resets itself soon.
//! `unanswered` makes the server acknowledge no requests for 100 s, and resets the device of a `stubborn` one.
//! `wild` attacks the server by its registers and queue, `rounds=N` times, and then ends. `server` serves a disk in its RAM, `clients=N` of
//! them, until each has said that it ends; with `stubborn` it acknowledges its first client's first reset only once it is cut off from that
//! client's RAM. `foe` attacks Stile by the server's registers and addresses.
#![no_std]
#![no_main]

mod disk;
mod driver;
mod foe;
mod function;
mod memory;
mod server;
mod time;
mod wild;

use common::fail::Outcome;
use pc::console::println;
use pc::{console, exception, hypercall, lapic, machine};

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    hypercall::setup();
    console::setup();
    lapic::enable();
    let line = machine::command_line(info);
    let has = |name: &str| line.split_ascii_whitespace().any(|word| word == name);
    let number = |name: &str, default| {
        let text = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(default)
    };
    match () {
        () if has("server") => server::run(number("clients", 1) as usize, has("stubborn")),
        () if has("foe") => end("foe", foe::attack()),
        () if has("wild") => end("wild", wild::attack(number("rounds", 200))),
        () if memory::second_boot() => end("after a reset", driver::after_reset()),
        () if has("unanswered") => end("unanswered", driver::unanswered()),
        () => match if has("again") { driver::before_early_reset() } else { driver::before_reset() } {
            Ok(()) => driver::reset_under_way(),
            failed => end("driver", failed),
        },
    }
}

/// Reports the outcome, and turns the machine off.
fn end(name: &str, outcome: Outcome) -> ! {
    let failed = match outcome {
        Ok(()) => {
            println!("PASS served: {name}");
            0
        }
        Err(why) => {
            println!("FAIL served: {name}: {why}");
            1
        }
    };
    println!("EXIT: STATUS={failed}");
    machine::off()
}
