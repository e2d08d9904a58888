//! Tries everything to break out of its VM, to crash the hypervisor, or to disturb a neighbour. The scheme is
//! in the crate `common`, shared with Arm.
//!
//! The guest avoids operations that would break itself; each phase documents them. It passes when it has
//! finished with its own memory unchanged.
//!
//! Command line: `seed=N` (default 1), `rounds=N` (default 1), `only=NAME`: phases whose names contain NAME;
//! `last=NAME`: the last CPU's final function, which never returns.
#![no_std]
#![no_main]

mod apic;
mod arguments;
mod board;
mod bytes;
mod control;
mod cpu;
mod delivery;
mod instructions;
mod interrupts;
mod layout;
mod lost;
mod memory;
mod odd;
mod phase_machine;
mod ports;
mod real;
mod registers;
mod soak;
mod tasks;
mod window;

use common::fail::Outcome;
use common::phases::{self, Phase, Plan};
use pc::console::println;
use pc::{console, lapic, machine};

use arguments::{argument, number};
use phase_machine::Pc;

const PHASES: [Phase; 16] = [
    ("msrs", registers::msrs),
    ("cpuid", registers::cpuid),
    ("control", control::run),
    ("instructions", instructions::run),
    ("ports", ports::noise),
    ("strings", ports::strings),
    ("memory", memory::wild),
    ("tables", memory::tables),
    ("apics", apic::registers),
    ("bases", apic::bases),
    ("interrupts", interrupts::storm),
    ("timers", interrupts::timers),
    ("cpus", real::run),
    ("delivery", delivery::run),
    ("tasks", tasks::run),
    ("bytes", bytes::run),
];

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    arguments::set_information(info);
    pc::exception::setup();
    console::setup();
    println!("suite hostile: {} CPUs", cpu::count());
    cpu::setup();
    window::setup();
    cpu::begin(run)
}

extern "C" fn run() {
    lapic::enable();
    if let Some(operations) = argument("soak").and_then(|text| text.parse().ok()) {
        return end(soak::run(operations));
    }
    let plan = Plan { seed: number("seed", 1), rounds: number("rounds", 1), only: argument("only").unwrap_or("") };
    let outcome = cpu::start_others().and_then(|()| phases::run::<Pc>(&PHASES, &plan));
    end(outcome)
}

/// Prints the outcome, and ends the machine.
fn end(outcome: Outcome) {
    let failed = match outcome {
        Ok(()) => {
            println!("PASS hostile");
            0
        }
        Err(why) => {
            println!("FAIL hostile: {why}");
            1
        }
    };
    lost::run();
    println!("EXIT: STATUS={failed}");
    machine::off()
}
