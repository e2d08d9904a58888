//! Ends in a state from which no guest can go on: a jump to where there is nothing, with no table of exceptions.
#![no_std]
#![no_main]

use pc::console;
use pc::console::println;

pc::program!();

/// Behind the RAM.
const NOWHERE: u64 = 0x8000_0000;

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, _info: u32) -> ! {
    console::setup();
    println!("crash: jumping to {NOWHERE:#x} without a table of exceptions");
    let none = [0u16; 5];
    // SAFETY: none: this is the end.
    unsafe { core::arch::asm!("lidt [{}]", "jmp {}", in(reg) &none, in(reg) NOWHERE, options(noreturn)) }
}
