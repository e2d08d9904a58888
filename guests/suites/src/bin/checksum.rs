//! The neighbour: computes checksums of its memory and registers, round after round, and detects any
//! unexpected change.
//!
//! Boot arguments: `rounds=N` (default 40), `mib=N`: memory to check (default 1, at most the free memory),
//! `share`: measure in each round the VM's share of CPU time.
#![no_std]
#![no_main]

use common::canary;
use common::cpu_time::Share;
use payload::entry::Entry;
use payload::harness::{self, Harness};
use payload::prelude::*;
use payload::probe::{self, Registers};
use payload::random::mix;

payload::program!(main);

core::arch::global_asm!(include_str!("checksum.s"));

unsafe extern "C" {
    /// Fills v0 to v31 with 64 words.
    fn checksum_load(words: *const [u64; 64]);
    /// Stores v0 to v31.
    fn checksum_store(words: *mut [u64; 64]);
}

fn main(entry: &Entry) -> ! {
    let mut harness = Harness::new("checksum", entry);
    harness.record("checksum", run());
    harness::exit(harness.sum())
}

/// Free RAM, as words.
fn memory() -> &'static mut [u64] {
    let free = machine::free_ram();
    let bytes = (machine::number("mib", 1) << 20).min(free.end.saturating_sub(free.start));
    // SAFETY: otherwise unused: it lies after the image and beside the device tree. Called once.
    unsafe { core::slice::from_raw_parts_mut(free.start as *mut u64, bytes as usize / 8) }
}

fn run() -> Outcome {
    let rounds = machine::number("rounds", 40);
    let between = |round| {
        registers(round)?;
        if machine::has("share") {
            share();
        }
        Ok(())
    };
    canary::watch(memory(), rounds, between, |round, sum| println!("checksum: round {round} of {rounds}: {sum:016x}"))
}

/// Measures this VM's share for 50 ms.
fn share() {
    let share = Share::measure(wait::ticks(50_000), wait::ticks(10), wait::now);
    println!("checksum: share {} of 1000, longest wait {} us", share.permille(), share.longest * 1_000_000 / wait::frequency());
}

/// Holds a pattern in all general and FP registers for some milliseconds.
fn registers(round: u64) -> Outcome {
    let vectors: [u64; 64] = core::array::from_fn(|n| mix(!round << 16 | n as u64));
    let mut found = [0; 64];
    // SAFETY: the compiler uses no FP register.
    unsafe { checksum_load(&vectors) };
    // x0 counts down, the others stay: subs x0, x0, #1; b.ne .-4
    let mut general: Registers = probe::pattern(round);
    general[0] = 1_000_000;
    let before = general;
    let fault = probe::run(&[0xF100_0400, 0x54FF_FFE1], &mut general);
    // SAFETY: the compiler uses no FP register, and the array holds all of them.
    unsafe { checksum_store(&mut found) };
    check!(fault.is_none(), "round {round}: {fault:x?}");
    check!(general[0] == 0 && general[1..] == before[1..], "round {round}: a general register changed");
    check!(found == vectors, "round {round}: an FP register changed");
    Ok(())
}
