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
mod bytes;
mod control;
mod cpu;
mod delivery;
mod instructions;
mod interrupts;
mod lost;
mod memory;
mod ports;
mod real;
mod registers;
mod soak;
mod tasks;
mod window;

use core::sync::atomic::{AtomicU32, Ordering};

use common::fail::Outcome;
use common::phases::{self, Machine, Phase, Plan};
use common::random::Random;
use pc::console::println;
use pc::{console, lapic, machine};

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

/// The PC of these phases.
struct Pc;

impl Machine for Pc {
    fn this() -> usize {
        cpu::this()
    }

    fn cpus() -> usize {
        cpu::count()
    }

    fn canary() -> &'static mut [u64] {
        // SAFETY: RAM after the program, present on the smallest machine; used here only.
        unsafe { core::slice::from_raw_parts_mut((16 << 20) as *mut u64, 0x1_0000) }
    }

    fn restore() -> Outcome {
        restore_board();
        cpu::on_all(|| {
            cpu::restore();
            window::mend();
            window::map_user_code();
            Ok(())
        })
    }

    fn say(line: core::fmt::Arguments<'_>) {
        println!("{line}");
    }
}

/// Random numbers of this CPU for this phase.
fn random() -> Random {
    phases::random::<Pc>()
}

/// This CPU's share of a number of attempts.
fn share(attempts: usize) -> core::ops::Range<usize> {
    phases::share::<Pc>(attempts)
}

/// Sixteen registers of values that break things.
fn odd(random: &mut Random) -> [u64; 16] {
    core::array::from_fn(|_| random.odd())
}

/// The devices that are not a CPU's: silent, as at the start.
fn restore_board() {
    // SAFETY: the 8254 and the 8259s are the guest's own.
    unsafe {
        machine::out8(0x43, 0x30);
        for port in [0x21, 0xa1] {
            machine::out8(port, 0xff);
        }
    }
    restore_console();
    apic::mask_inputs();
}

/// The UART prints.
fn restore_console() {
    console::setup();
    // Its interrupts, its FIFOs and its loop back to itself.
    for port in [0x3f9, 0x3fa, 0x3fc] {
        // SAFETY: the UART belongs to the guest.
        unsafe { machine::out8(port, 0) };
    }
}

static INFORMATION: AtomicU32 = AtomicU32::new(0);

/// The text after `name=` on the command line.
fn argument(name: &str) -> Option<&'static str> {
    let line = machine::command_line(INFORMATION.load(Ordering::Relaxed));
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn number(name: &str, default: u64) -> u64 {
    argument(name).and_then(|text| text.parse().ok()).unwrap_or(default)
}

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    INFORMATION.store(info, Ordering::Relaxed);
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
