//! Ends in a state from which no guest can go on: a jump to where there is nothing, with no table of exceptions; or, with `entry=controls` or
//! `entry=state` at the end of the command line, a VM entry that fails.
#![no_std]
#![no_main]

use pc::console;
use pc::console::println;

pc::program!();

/// Test port: a write makes Stile's next entry of this CPU fail.
const TEST_ENTRY: u16 = 0xe8;

/// Has the VM entry fail by a control (0) or by guest state (1). The VM ends by that.
fn fail_entry(by: u8) {
    println!("crash: the next VM entry fails by {by}");
    // SAFETY: none: this is the end.
    unsafe { pc::machine::out8(TEST_ENTRY, by) };
    println!("FAIL: it does not");
}

/// Behind the RAM.
const NOWHERE: u64 = 0x8000_0000;

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    console::setup();
    match pc::machine::command_line(info).split_ascii_whitespace().last() {
        Some("entry=controls") => fail_entry(0),
        Some("entry=state") => fail_entry(1),
        _ => {}
    }
    println!("crash: jumping to {NOWHERE:#x} without a table of exceptions");
    let none = [0u16; 5];
    // SAFETY: none: this is the end.
    unsafe { core::arch::asm!("lidt [{}]", "jmp {}", in(reg) &none, in(reg) NOWHERE, options(noreturn)) }
}
