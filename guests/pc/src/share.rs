//! A neighbour that measures its share of a CPU by the counter, which in Bochs counts instructions.
//!
//! Command line: `least=N`: the required percentage (default 1), `chunks=N`: the amount of computation
//! (default 4000).
#![no_std]
#![no_main]

use common::share;
use pc::console::println;
use pc::{console, exception, machine};

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite share");
    // Since the machine was turned on.
    println!("share: starts at tick {}", machine::ticks());
    let line = machine::command_line(info);
    let number = |name: &str, default| {
        let found = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
        found.unwrap_or(default)
    };
    let (least, chunks) = (number("least", 1), number("chunks", 4000));
    let percent = share::percent(machine::ticks, compute, chunks);
    let failed = u8::from(percent < least);
    println!("{} share: {percent} % of the CPU, at least {least} wanted", if failed == 0 { "PASS" } else { "FAIL" });
    println!("EXIT: STATUS={failed}");
    machine::off()
}

/// 20,000 instructions.
fn compute() {
    // SAFETY: it counts a register down.
    unsafe { core::arch::asm!("2: dec {n}", "jnz 2b", n = inout(reg) 10_000u64 => _, options(nomem, nostack)) };
}
