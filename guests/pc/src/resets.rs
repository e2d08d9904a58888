//! Resets forever, after reading a word of each page of its RAM: the files must be loaded each time.
//!
//! Command line: `mib=N`: its RAM (default 64).
#![no_std]
#![no_main]

use pc::console::println;
use pc::{console, exception, machine};

pc::program!();

/// The keyboard controller's command that resets the machine.
const KEYBOARD: u16 = 0x64;
const RESET: u8 = 0xfe;

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("resets: once more");
    let words = machine::command_line(info).split_ascii_whitespace();
    let mib = words.filter_map(|word| word.strip_prefix("mib=")?.parse().ok()).next().unwrap_or(64);
    for page in (4096..mib << 20).step_by(4096) {
        // SAFETY: RAM, and any value will do.
        unsafe { (page as *const u64).read_volatile() };
    }
    // SAFETY: the 8042 resets the machine, which this test expects: nothing after it is needed.
    unsafe { machine::out8(KEYBOARD, RESET) };
    loop {
        core::hint::spin_loop();
    }
}
