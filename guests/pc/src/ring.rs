//! Two CPUs send each other an interrupt in turn, for ever, with a pause in between.
//!
//! Command line: `storm`: instead, this CPU executes CPUID without a pause.
#![no_std]
#![no_main]

use core::arch::x86_64::__cpuid as cpuid;
use core::sync::atomic::Ordering;

use pc::console::println;
use pc::exception::COUNTS;
use pc::lapic;
use pc::machine::{self, ticks};
use pc::{console, exception, others};

pc::program!();

/// Sent to the other one, and back.
const THERE: u8 = 0x71;
const BACK: u8 = 0x72;
/// Between two interrupts.
const PAUSE: u64 = 200_000;

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    lapic::enable();
    if machine::command_line(info).contains("storm") {
        println!("ring: storm");
        loop {
            cpuid(0);
        }
    }
    others::start();
    // Until then its APIC is off, and accepts nothing.
    while others::UP.load(Ordering::SeqCst) == 0 {
        core::hint::spin_loop();
    }
    println!("ring: started");
    others::give(|| turns(THERE, BACK, 0));
    others::pass(2_000_000);
    lapic::send(1, THERE.into());
    turns(BACK, THERE, 1);
    machine::off()
}

/// Waits for one vector, and sends the other.
fn turns(awaited: u8, sent: u8, to: u32) {
    machine::sti();
    let mut taken = 0;
    loop {
        while COUNTS[usize::from(awaited)].load(Ordering::SeqCst) == taken {
            core::hint::spin_loop();
        }
        taken = COUNTS[usize::from(awaited)].load(Ordering::SeqCst);
        let end = ticks() + PAUSE;
        while ticks() < end {
            core::hint::spin_loop();
        }
        lapic::send(to, u32::from(sent));
    }
}
