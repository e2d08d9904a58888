//! Attacks the machine through PCI functions that the VM owns: QEMU's `edu` and virtio devices, of which `virtio-rng` is the one that
//! sends messages. The scheme is in the crate `common`, as that of `hostile`.
//!
//! It passes when it has finished with its own memory unchanged, as often as it is to boot: its last attack is an INIT message to all
//! CPUs, which resets the machine.
//!
//! Command line: `seed=N` (default 1), `rounds=N` (default 1), `only=NAME`: phases whose names contain NAME; `boots=N` (default 2);
//! `attack=NAME`: instead of all that, an attack without end (`storm.rs`); `cost=N`: N requests that are measured (`cost.rs`).
#![no_std]
#![no_main]

mod bars;
mod config;
mod cost;
mod dma;
mod function;
mod job;
mod messages;
mod modes;
mod phase_machine;
mod poke;
mod rings;
mod storm;
mod virtio;

use common::check_eq;
use common::fail::Outcome;
use common::phases::{self, Phase, Plan};
use pc::console::println;
use pc::{console, lapic, machine};

use function::{Function, ID_OF_EDU};
use phase_machine::Pc;

const PHASES: [Phase; 8] = [
    ("config", config::run),
    ("bars", bars::run),
    ("dma", dma::run),
    ("rings", rings::run),
    ("modes", modes::run),
    ("messages", messages::run),
    ("inits", messages::inits),
    ("flood", messages::flood),
];

/// RAM that keeps the number of boots: a reset does not change it.
const BOOTS: *mut u64 = (48 << 20) as *mut u64;
const MARK: u64 = 0xb007_0000;

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    pc::exception::setup();
    pc::hypercall::setup();
    console::setup();
    lapic::enable();
    // SAFETY: RAM that nothing else uses.
    let boots = unsafe { BOOTS.read_volatile() };
    let boot = if boots & !0xffff == MARK { boots + 1 } else { MARK | 1 };
    // SAFETY: the same RAM.
    unsafe { BOOTS.write_volatile(boot) };
    println!("suite functions: boot {}", boot & 0xffff);
    let line = machine::command_line(info);
    let text = |name: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name, default| text(name).and_then(|text| text.parse().ok()).unwrap_or(default);
    let seed = number("seed", 1) + (boot & 0xffff);
    let plan = Plan { seed, rounds: number("rounds", 1), only: text("only").unwrap_or("") };
    let outcome = match (text("attack"), number("cost", 0)) {
        (Some(attack), _) => storm::run(attack),
        (None, requests @ 1..) => cost::run(requests),
        (None, 0) => begin().and_then(|()| phases::run::<Pc>(&PHASES, &plan)),
    };
    if outcome.is_ok() && boot & 0xffff < number("boots", 2) {
        messages::reset_by_init();
    }
    let failed = match outcome {
        Ok(()) => {
            println!("PASS functions");
            0
        }
        Err(why) => {
            println!("FAIL functions: {why}");
            1
        }
    };
    println!("EXIT: STATUS={failed}");
    machine::off()
}

/// Checks that the functions are in reset state, also if the machine was reset during an attack.
fn begin() -> Outcome {
    for function in Function::all() {
        check_eq!(function.read(4) & 0xffff, 0, "command of device {}", function.device);
        for bar in 0..6 {
            check_eq!(function.read(0x10 + 4 * bar) & !0xf, 0, "BAR {bar} of device {}", function.device);
        }
    }
    common::check!(Function::find(ID_OF_EDU).is_some() && virtio::Virtio::find(virtio::RNG).is_some(), "a function is missing");
    Ok(())
}
