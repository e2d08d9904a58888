//! The neighbour: computes checksums of its memory and registers, round after round, and detects any
//! unexpected change.
//!
//! Command line: `rounds=N` (default 40); `share`: measure in each round the VM's share of CPU time; `alone`: fail on an interrupt or NMI.
#![no_std]
#![no_main]

use common::cpu_time::Share;
use common::fail::Outcome;
use common::random::mix;
use common::{canary, check, check_eq};
use pc::console::println;
use pc::lapic::{self, register};
use pc::{console, exception, machine};

/// Start of the memory, and its words.
const MEMORY: u64 = 16 << 20;
const WORDS: usize = 1 << 17;

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite checksum");
    let line = machine::command_line(info);
    let rounds = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("rounds=")?.parse().ok()).unwrap_or(40);
    let has = |name| line.split_ascii_whitespace().any(|word| word == name);
    if has("alone") {
        lapic::enable();
    }
    let failed = match run(rounds, has("share"), has("alone")) {
        Ok(()) => {
            println!("PASS checksum");
            0
        }
        Err(why) => {
            println!("FAIL checksum: {why}");
            1
        }
    };
    println!("EXIT: STATUS={failed}");
    machine::off()
}

fn run(rounds: u64, shares: bool, is_alone: bool) -> Outcome {
    // SAFETY: RAM after the program, otherwise unused.
    let memory = unsafe { core::slice::from_raw_parts_mut(MEMORY as *mut u64, WORDS) };
    let between = |round| {
        registers(round)?;
        if shares {
            share();
        }
        if is_alone { alone(round) } else { Ok(()) }
    };
    canary::watch(memory, rounds, between, |round, sum| println!("checksum: round {round} of {rounds}: {sum:016x}"))
}

/// Checks that no NMI has arrived, and no interrupt is pending: this CPU masks interrupts.
fn alone(round: u64) -> Outcome {
    const NMI: u8 = 2;
    check_eq!(exception::take(NMI), 0, "round {round}: NMIs");
    for word in 0..8 {
        check_eq!(lapic::read(register::IRR + 0x10 * word), 0, "round {round}: pending interrupts {}", 32 * word);
    }
    Ok(())
}

/// Measures this VM's share for 20 million ticks, which on an emulated PC are instructions.
fn share() {
    // Ticks per microsecond for these ratios: a tick is an instruction.
    const MICROSECOND: u64 = 1_000;
    let share = Share::measure(20_000 * MICROSECOND, 10 * MICROSECOND, machine::ticks);
    println!("checksum: share {} of 1000, longest wait {} us", share.permille(), share.longest / MICROSECOND);
}

/// Holds a pattern in registers for some milliseconds: general, debug and SIMD ones, and MSRs that Stile moves only when it must.
fn registers(round: u64) -> Outcome {
    const MSRS: [u32; 5] = [0xc000_0081, 0xc000_0082, 0xc000_0084, 0xc000_0102, 0x176];
    let value = |n: u64| mix(!round << 16 | n) & 0x7fff_ffff;
    let (mut low, mut high, mut debug): (u64, u64, u64);
    // SAFETY: these registers are otherwise unused; SIMD is enabled.
    unsafe {
        for (n, register) in MSRS.into_iter().enumerate() {
            machine::wrmsr(register, value(n as u64));
        }
        core::arch::asm!("mov {0}, cr4", "or {0}, 1 << 9", "mov cr4, {0}", "mov dr1, {1}", out(reg) _, in(reg) value(8), options(nostack));
        core::arch::asm!(
            "movq xmm3, {low}", "movq xmm14, {high}", "mov rcx, 400000", "2: dec rcx", "jnz 2b", "movq {low}, xmm3", "movq {high}, xmm14",
            "mov {debug}, dr1", low = inout(reg) value(6) => low, high = inout(reg) value(7) => high, debug = out(reg) debug, out("rcx") _,
            options(nostack)
        );
        for (n, register) in MSRS.into_iter().enumerate() {
            check_eq!(machine::rdmsr(register), value(n as u64), "round {round}: MSR {register:#x}");
        }
    }
    check!(low == value(6) && high == value(7), "round {round}: a SIMD register changed");
    check_eq!(debug, value(8), "round {round}: DR1");
    Ok(())
}
