//! Measures this vCPU's share of a CPU, and its longest wait, while other VMs compete for the CPU.
//!
//! Boot arguments: `crowd=spin`, `crowd=yield`, `crowd=block` or `crowd=sgi`: only competes, on all vCPUs. `cap=N`: it
//! must get this percentage, the VM's cap. Otherwise it must get `least=N` percent (default 48), and wait for at most
//! two time slices of `slice_us=N` and `exits_us=N` (default 0). It measures after `warm=N` slices. Only gaps of more than a fraction of a
//! slice count as time that others had, by default an eighth: `gap=N`.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::gic::Bits;
use payload::harness::{self, Harness};
use payload::prelude::*;
use payload::timer::Timer;
use payload::{instruction, psci};

payload::program!(main);

/// Slices to wait until the others are up, by default.
const WARM_UP: u64 = 20;
/// Slices to measure for.
const MEASURED: u64 = 60;
/// A step of the counter longer than this fraction of a slice is time during which others ran.
const GAP: u64 = 8;

fn main(entry: &Entry) -> ! {
    if let Some(kind) = machine::text("crowd") {
        crowd(kind);
    }
    let mut harness = Harness::new("crowded", entry);
    harness.record("crowded", if machine::number("cap", 0) == 0 { half() } else { cap() });
    harness::exit(harness.sum())
}

fn crowd(kind: &str) -> ! {
    let compete = match kind {
        "yield" => yields,
        "block" => block,
        "sgi" => send,
        _ => spin,
    };
    for cpu in 1..machine::cpus() {
        smp::give(cpu, compete);
        psci::cpu_on(cpu, 0);
    }
    let _ = compete();
    unreachable!()
}

fn spin() -> Outcome {
    loop {
        core::hint::spin_loop();
    }
}

fn yields() -> Outcome {
    loop {
        instruction!("wfe");
    }
}

/// Runs for nine tenths of each slice, and waits for a timer then.
fn block() -> Outcome {
    let slice = machine::number("slice_us", 5000);
    gic::reset_cpu();
    gic::set(Bits::Enable, Timer::Virtual.intid());
    loop {
        wait::spin(slice * 9 / 10);
        Timer::Virtual.start(slice / 50);
        instruction!("wfi");
        Timer::Virtual.stop();
    }
}

fn send() -> Outcome {
    loop {
        icc::sgi_others(1);
    }
}

/// Total and longest time in which this vCPU did not run, within `ticks`.
fn watch(ticks: u64, gap: u64) -> (u64, u64) {
    let (mut lost, mut longest) = (0, 0);
    let begin = Timer::Virtual.count();
    let mut last = begin;
    while last - begin < ticks {
        let now = Timer::Virtual.count();
        if now - last > gap {
            lost += now - last;
            longest = longest.max(now - last);
        }
        last = now;
    }
    (lost, longest)
}

fn half() -> Outcome {
    let slice = wait::ticks(machine::number("slice_us", 5000));
    let gap = slice / machine::number("gap", GAP);
    watch(machine::number("warm", WARM_UP) * slice, gap);
    let (lost, longest) = watch(MEASURED * slice, gap);
    let percent = 100 - lost * 100 / (MEASURED * slice);
    let (whole, tenths) = (longest / slice, longest * 10 / slice % 10);
    println!("crowded: {percent} % of the CPU; longest wait {longest} ticks, {whole}.{tenths} slices");
    let least = machine::number("least", 48);
    check!(percent >= least, "{percent} % of the CPU, not {least} %");
    // Two slices of others, and Stile's switches between them.
    let most = 2 * slice + slice / 5 + wait::ticks(machine::number("exits_us", 0));
    check!(longest <= most, "waited for {longest} ticks, not {most}");
    Ok(())
}

fn cap() -> Outcome {
    let period = wait::ticks(100_000);
    // From one period's beginning to another one's, wherever that is.
    watch(period, period / 100);
    let (lost, longest) = watch(3 * period, period / 100);
    let percent = 100 - lost * 100 / (3 * period);
    println!("crowded: {percent} % of the CPU; longest wait {} % of a period", longest * 100 / period);
    let cap = machine::number("cap", 0);
    check!(percent >= cap - 2 && percent <= cap + 1, "{percent} % of the CPU, with a cap of {cap} %");
    Ok(())
}
