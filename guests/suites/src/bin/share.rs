//! A neighbour that measures its share of a CPU. Exact if virtual time counts instructions.
//!
//! Boot arguments: `least=N`: the required percentage (default 1), `chunks=N`: the amount of computation
//! (default 4000), `sgi_us=N`: the second CPU sends an SGI to this one each `N` microseconds, and spins between.
#![no_std]
#![no_main]

use common::share;
use payload::entry::Entry;
use payload::gic::Bits;
use payload::harness::{self, Harness};
use payload::prelude::*;
use payload::psci;
use payload::timer::Timer;

payload::program!(main);

const SGI: u32 = 1;

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("share", entry);
    harness.record("share", run());
    harness::exit(harness.sum())
}

fn run() -> Outcome {
    // Since the machine was turned on.
    println!("share: starts at tick {}", Timer::Virtual.count());
    let least = machine::number("least", 1);
    if machine::number("sgi_us", 0) > 0 {
        gic::reset_cpu();
        gic::set(Bits::Enable, SGI);
        irq::unmask();
        smp::start(1, 0)?;
        smp::give(1, send);
    }
    let stolen = stolen_time()?;
    let start = Timer::Virtual.count();
    let percent = share::percent(|| Timer::Virtual.count(), compute, machine::number("chunks", 4000));
    let microseconds = (Timer::Virtual.count() - start) * 1_000_000 / wait::frequency();
    let stolen = stolen() / 1000;
    println!("share: {percent} % of the CPU, {stolen} us stolen of {microseconds} us");
    check!(percent >= least, "{percent} % of the CPU, not {least}");
    // Told at the ends of slices; the last one is under way.
    let missing = microseconds * (100 - percent.min(100)) / 100;
    check!(stolen <= microseconds && stolen * 10 >= missing * 8, "{stolen} us stolen; {missing} us went elsewhere");
    check!(stolen <= missing + microseconds / 10, "{stolen} us stolen; only {missing} us went elsewhere");
    Ok(())
}

/// Sends SGIs to the first CPU, for ever.
fn send() -> Outcome {
    let period = machine::number("sgi_us", 0);
    loop {
        wait::spin(period);
        icc::sgi(SGI, 1);
    }
}

/// Asks for the stolen time (Arm DEN 0057A) step by step, as Linux does, and returns a function that reads it, in nanoseconds.
fn stolen_time() -> Result<impl Fn() -> u64, Fail> {
    const ARCH_FEATURES: u32 = 0x8000_0001;
    const PV_TIME_FEATURES: u32 = 0xc500_0020;
    const PV_TIME_ST: u32 = 0xc500_0021;
    check_eq!(psci::call(ARCH_FEATURES, [PV_TIME_FEATURES.into(), 0, 0]), psci::SUCCESS, "SMCCC_ARCH_FEATURES of PV_TIME_FEATURES");
    check_eq!(psci::call(PV_TIME_FEATURES, [PV_TIME_ST.into(), 0, 0]), psci::SUCCESS, "PV_TIME_FEATURES of PV_TIME_ST");
    let address = psci::call(PV_TIME_ST, [0; 3]);
    check!(address > 0 && address % 64 == 0, "PV_TIME_ST: {address:#x}");
    let address = address as u64;
    // SAFETY: a structure of 64 bytes that only the hypervisor writes; its first word is revision and attributes.
    let word = move |n: u64| unsafe { ((address + 8 * n) as *const u64).read_volatile() };
    check_eq!(word(0), 0, "revision and attributes");
    Ok(move || word(1))
}

/// 20,000 instructions.
fn compute() {
    // SAFETY: the loop changes a register that is an output, and touches no memory.
    unsafe { core::arch::asm!("2: subs {n}, {n}, #1", "b.ne 2b", n = inout(reg) 10_000u64 => _, options(nomem, nostack)) };
}
