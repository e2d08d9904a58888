//! Resets forever, after reading a word of each page of its RAM: the files must be loaded each time.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::prelude::*;
use payload::psci;

payload::program!(main);

fn main(_: &Entry) -> ! {
    println!("resets: once more");
    for page in machine::ram().step_by(4096) {
        // SAFETY: RAM, and any value will do.
        unsafe { (page as *const u64).read_volatile() };
    }
    psci::system_reset()
}
