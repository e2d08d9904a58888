//! Tries everything to break out of its VM, to crash the hypervisor, or to disturb a neighbour.
//!
//! Phases follow each other, most of them on all CPUs concurrently. Results of accesses are unchecked: an
//! access must only return, with or without an exception. The guest avoids operations that would break
//! itself; each phase documents them. It passes when it has finished with its own memory unchanged.
//!
//! Boot arguments: `seed=N` (default 1), `rounds=N` (default 1; each with the next seed), `only=NAME`: phases whose names contain NAME.
//! `soak=N`: N operations of all phases, mixed ([`soak`]).
#![no_std]
#![no_main]

mod bursts;
mod console;
mod cpus;
mod devices;
mod exceptions;
mod hypercalls;
mod instructions;
mod interrupts;
mod lost;
mod memory;
mod pages;
mod soak;
mod sysregs;
mod waiting;

use common::phases::{self, Machine, Phase, Plan};
use payload::encode::Sysreg;
use payload::entry::Entry;
use payload::harness::{self, Harness};
use payload::prelude::*;
use payload::random::Random;
use payload::timer::Timer;
use payload::{probe, uart};

payload::program!(main);

const PHASES: [Phase; 14] = [
    ("sysregs", sysregs::registers),
    ("instructions-system", sysregs::instructions),
    ("hypercalls", hypercalls::run),
    ("memory", memory::wild),
    ("tables", memory::tables),
    ("devices", devices::run),
    ("interrupts", interrupts::storm),
    ("binary-points", interrupts::binary_points),
    ("timers", interrupts::timers),
    ("cpus", cpus::run),
    ("waiting", waiting::run),
    ("exceptions", exceptions::run),
    ("instructions", instructions::run),
    ("console", console::run),
];

/// The machine of these phases.
struct Virt;

impl Machine for Virt {
    fn this() -> usize {
        smp::this()
    }

    fn cpus() -> usize {
        machine::cpus()
    }

    fn canary() -> &'static mut [u64] {
        const WORDS: usize = 0x1_0000;
        let free = machine::free_ram();
        let count = WORDS.min((free.end.saturating_sub(free.start) / 8) as usize);
        // SAFETY: free RAM after the image; used here only, by one CPU at a time.
        unsafe { core::slice::from_raw_parts_mut(free.start as *mut u64, count) }
    }

    fn restore() -> Outcome {
        restore()
    }

    fn say(line: core::fmt::Arguments<'_>) {
        println!("{line}");
    }
}

/// Random numbers of this CPU for this phase.
fn random() -> Random {
    phases::random::<Virt>()
}

/// This CPU's share of a number of attempts.
fn share(attempts: usize) -> core::ops::Range<usize> {
    phases::share::<Virt>(attempts)
}

fn main(entry: &Entry) -> ! {
    let harness = Harness::new("hostile", entry);
    let outcome = run();
    let mut harness = harness;
    harness.record("hostile", outcome);
    let status = harness.sum();
    // The last phase never returns.
    if machine::text("soak").is_none() {
        lost::run();
    }
    harness::exit(status)
}

fn run() -> Outcome {
    if let Some(operations) = machine::text("soak").and_then(|text| text.parse().ok()) {
        return soak::run(operations);
    }
    let (seed, rounds) = (machine::number("seed", 1), machine::number("rounds", 1));
    phases::run::<Virt>(&PHASES, &Plan { seed, rounds, only: machine::text("only").unwrap_or("") })
}

/// Restores all CPUs and devices to a state in which the guest can continue.
fn restore() -> Outcome {
    uart::init();
    smp::on_all(|| {
        restore_cpu();
        Ok(())
    })?;
    gic::reset();
    smp::on_all(|| {
        gic::reset_cpu();
        Ok(())
    })
}

fn restore_cpu() {
    /// Back to 0, where they exist: ALLINT, PAN, UAO, SVCR, MDSCR_EL1, OSLAR_EL1, OSDLR_EL1, PMCR_EL0, CNTKCTL_EL1.
    const ZERO: [Sysreg; 9] = [
        Sysreg::new(3, 0, 4, 3, 0),
        Sysreg::new(3, 0, 4, 2, 3),
        Sysreg::new(3, 0, 4, 2, 4),
        Sysreg::new(3, 3, 4, 2, 2),
        Sysreg::new(2, 0, 0, 2, 2),
        Sysreg::new(2, 0, 1, 0, 4),
        Sysreg::new(2, 0, 1, 3, 4),
        Sysreg::new(3, 3, 9, 12, 0),
        Sysreg::new(3, 0, 14, 1, 0),
    ];
    irq::mask();
    // The active priorities, ICC_AP0R<n>_EL1 and ICC_AP1R<n>_EL1, too: a stale one would mask interrupts.
    let priorities = (0..4).flat_map(|n| [Sysreg::new(3, 0, 12, 8, 4 + n), Sysreg::new(3, 0, 12, 9, n)]);
    for register in ZERO.into_iter().chain(priorities) {
        probe::one(register.write(0), 0);
    }
    // FP, SVE and SME are enabled; absent ones are RES0.
    msr!("CPACR_EL1", 3 << 20 | 3 << 16 | 3 << 24);
    for timer in Timer::ALL {
        timer.stop();
    }
}
