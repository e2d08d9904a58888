//! Waits for an interrupt that never comes.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::{instruction, println};

payload::program!(main);

fn main(_: &Entry) -> ! {
    println!("idle: waiting, with no interrupt enabled");
    loop {
        instruction!("wfi");
    }
}
