//! A served device: a driver and a server of virtio-blk, each in a VM of its own, and hostile forms of both.
//!
//! Boot arguments: `driver` writes and reads the disk, through a reset of each side, and then ends. `count` makes `requests=N` and few
//! others, and sleeps while it waits. `again` resets itself soon. `away` lets the server turn itself off.
//! `unanswered` makes it acknowledge no requests for 100 s, and answer none for 400 s, and resets the device of a `stubborn` one. `paused`
//! resets the device of one that the operator has paused. `alone` has no server.
//! `balloon` fills RAM, which `balloons` gives back. `wild` attacks the server by its registers and queue, `rounds=N` times
//! in each way; `wild others` a server that is not this program. `server` serves a disk in its RAM, `clients=N` of them, until each has
//! said that it ends; with `stubborn` it acknowledges its first client's first reset only once it is cut off from that client's RAM.
//! `foe` attacks Stile by the server's registers and addresses.
#![no_std]
#![no_main]

mod balloon;
mod disk;
mod driver;
mod foe;
mod function;
mod memory;
mod server;
mod wild;

use payload::entry::Entry;
use payload::harness::Harness;
use payload::prelude::*;

payload::program!(main);

fn main(entry: &Entry) -> ! {
    gic::reset();
    if machine::has("server") {
        server::run();
    }
    let mut harness = Harness::new("served", entry);
    match () {
        () if machine::has("foe") => harness.run(|| {}, foe::TESTS),
        () if machine::has("wild") && machine::has("others") => harness.run(|| {}, wild::FOR_OTHERS),
        () if machine::has("wild") => harness.run(|| {}, wild::TESTS),
        () if machine::has("count") => harness.run(|| {}, driver::COUNT),
        () if machine::has("balloon") => harness.run(|| {}, balloon::CLIENT),
        () if machine::has("balloons") => harness.run(|| {}, balloon::SERVER),
        () if machine::has("alone") => harness.run(|| {}, driver::ALONE),
        () if machine::has("unanswered") => harness.run(|| {}, driver::UNANSWERED),
        () if machine::has("paused") => harness.run(|| {}, driver::PAUSED),
        () if machine::has("away") => harness.run(|| {}, driver::AWAY),
        () if memory::second_boot() => harness.run(|| {}, driver::AFTER_RESET),
        () => {
            harness.run(|| {}, if machine::has("again") { driver::BEFORE_RESET } else { driver::TESTS });
            if harness.sum() != 0 {
                payload::harness::exit(1);
            }
            driver::leave_under_way();
            payload::psci::system_reset()
        }
    }
    harness.end()
}
