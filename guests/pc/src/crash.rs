//! Enters a state from which no guest can continue: a jump to an unmapped address, without an IDT; or, with
//! `entry=controls` or `entry=state` at the end of the command line, a failing VM entry.
#![no_std]
#![no_main]

use pc::console;
use pc::console::println;

pc::program!();

/// Test port: a write makes Stile's next entry of this CPU fail.
const TEST_ENTRY: u16 = 0xe8;

/// Makes the VM entry fail by a control (0) or by guest state (1), which ends the VM.
fn fail_entry(by: u8) {
    println!("crash: the next VM entry fails by {by}");
    // SAFETY: nothing of the program is used after this: the machine is expected to end here.
    unsafe { pc::machine::out8(TEST_ENTRY, by) };
    println!("FAIL: it does not");
}

/// Beyond RAM.
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
    // SAFETY: nothing of the program is used after this: the machine is expected to end here.
    unsafe { core::arch::asm!("lidt [{}]", "jmp {}", in(reg) &none, in(reg) NOWHERE, options(noreturn)) }
}
