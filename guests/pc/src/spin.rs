//! Spins with interrupts disabled, without yielding. Its second vCPU, if any, does the same.
#![no_std]
#![no_main]

use pc::console::println;
use pc::{console, exception, lapic, others};

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, _info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("spin: spinning");
    lapic::enable();
    others::start();
    loop {
        core::hint::spin_loop();
    }
}
