//! Never yields: interrupts masked, an endless loop without a single instruction that could exit.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::{irq, println};

payload::program!(main);

fn main(_: &Entry) -> ! {
    println!("spin: interrupts masked, spinning for ever");
    irq::mask();
    loop {
        // SAFETY: an empty instruction, which prevents the loop from being optimized away.
        unsafe { core::arch::asm!("nop") };
    }
}
