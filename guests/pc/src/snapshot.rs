//! Is saved, restored and paused while both CPUs take timer interrupts, and memory and registers hold patterns.
//!
//! Ends once its time-stamp counter has been held as often as `holds=N` (default 2) says. Command line: `x2apic`: in that mode;
//! `spread=N`: the pattern is in a page of each of N blocks of 2 MiB, instead of contiguous memory.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use common::fail::Outcome;
use common::pause::{self, Clocks};
use common::random::mix;
use common::{canary, check, check_eq};
use pc::acpi::{TIMER_HZ, timer};
use pc::console::println;
use pc::lapic::{self as apic, register};
use pc::{console, exception, machine, others};

pc::program!();

/// Start of the memory, and its words.
const MEMORY: u64 = 16 << 20;
const WORDS: usize = 1 << 16;
/// With `spread`: bytes of a block, and words of a page.
const BLOCK: u64 = 2 << 20;
const PAGE: usize = 4096 / 8;
/// Timer interrupts that each CPU takes in a round.
const SHOTS: u64 = 10;
/// Vector of a CPU's timer, and of the 8254.
const TIMER: u8 = 0x50;
const PIT: u8 = 0x60;
/// IA32_TSC_DEADLINE.
const TSC_DEADLINE: u32 = 0x6e0;

/// Shots that a CPU waited for in vain, or got at once.
static WRONG: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite snapshot");
    let line = machine::command_line(info);
    let number = |name| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.parse().ok());
    let (holds, spread) = (number("holds=").unwrap_or(2), number("spread=").unwrap_or(0));
    if line.split_ascii_whitespace().any(|word| word == "x2apic") {
        apic::set_base(apic::base() | apic::X2);
    }
    let failed = match run(holds, spread) {
        Ok(()) => {
            println!("PASS snapshot");
            0
        }
        Err(why) => {
            println!("FAIL snapshot: {why}");
            1
        }
    };
    println!("EXIT: STATUS={failed}");
    machine::off()
}

fn run(wanted: u64, spread: u64) -> Outcome {
    apic::enable();
    others::start();
    check!(others::wait(|| others::UP.load(Ordering::SeqCst) == 1), "the other CPU does not start");
    // SAFETY: the 8259s are masked, and the 8254's first counter interrupts 100 times a second.
    unsafe {
        [(0x21, 0xff), (0xa1, 0xff), (0x43, 0x34), (0x40, 0x9c), (0x40, 0x2e)]
            .into_iter()
            .for_each(|(port, value)| machine::out8(port, value));
    }
    apic::io_route(2, 0, PIT.into());
    // SAFETY: RAM after the program, otherwise unused. One is in use at a time, in a block of its own.
    let memory = |block, words| unsafe { core::slice::from_raw_parts_mut((MEMORY + block * BLOCK) as *mut u64, words) };
    let pattern = |block| memory(block, if spread == 0 { WORDS } else { PAGE });
    let blocks = 0..spread.max(1);
    // The time-stamp counter, which a pause stops, and ACPI's timer, which does not wrap meanwhile.
    let ratio = pause::ratio(machine::ticks, timer, TIMER_HZ / 50);
    let clocks = Clocks { held: machine::ticks, running: || (timer() * ratio) >> 16, slack: (TIMER_HZ / 50 * ratio) >> 16 };
    let (mut holds, mut watch, mut round, mut last) = (0, clocks.watch(), 0, machine::ticks());
    while holds < wanted {
        round += 1;
        blocks.clone().for_each(|block| canary::fill(pattern(block), round + block));
        registers::set(round);
        others::give(|| WRONG.store(WRONG.load(Ordering::SeqCst) + shots(false), Ordering::SeqCst));
        let wrong = shots(true);
        check!(others::wait(|| others::DONE.load(Ordering::SeqCst) == 1), "round {round}: the other CPU does not finish");
        check_eq!(wrong + WRONG.load(Ordering::SeqCst), 0, "round {round}: wrong timer interrupts");
        exception::take(PIT);
        check!(others::wait(|| wait_for(PIT)), "round {round}: the 8254 does not interrupt");
        registers::check(round)?;
        blocks.clone().try_for_each(|block| canary::check(pattern(block), round + block))?;
        let now = machine::ticks();
        check!(now > last, "round {round}: the counter went back from {last} to {now}");
        last = now;
        println!("snapshot: round {round}");
        if watch.gained().is_some() {
            holds += 1;
            println!("snapshot: hold {holds}");
        }
    }
    Ok(())
}

/// Takes interrupts of this CPU's timer in HLT. Returns the number of wrong ones. `deadline`: in that mode.
fn shots(deadline: bool) -> u64 {
    const SPAN: u64 = 100_000;
    let vector = TIMER + apic::id() as u8;
    let mut wrong = 0;
    exception::take(vector);
    if deadline {
        apic::write(register::TIMER, 0x4_0000 | u32::from(vector));
    } else {
        apic::write(register::DIVIDE, 0xb);
        apic::write(register::TIMER, vector.into());
    }
    for _ in 0..SHOTS {
        let at = machine::ticks() + SPAN;
        if deadline {
            // SAFETY: the timer is in deadline mode.
            unsafe { machine::wrmsr(TSC_DEADLINE, at) };
        } else {
            apic::write(register::INITIAL, SPAN as u32);
        }
        while !wait_for(vector) {}
        // The count of the timer began later than `at` was computed.
        wrong += u64::from(machine::ticks() < at) + exception::COUNTS[usize::from(vector)].load(Ordering::SeqCst);
    }
    wrong
}

/// Waits in HLT until an interrupt arrives. Returns whether one of this vector has.
fn wait_for(vector: u8) -> bool {
    // SAFETY: interrupts are off from the check to HLT, and only this CPU takes the vector.
    unsafe {
        machine::cli();
        if exception::COUNTS[usize::from(vector)].load(Ordering::SeqCst) == 0 {
            core::arch::asm!("sti", "hlt", options(nostack));
        }
        machine::sti();
    }
    exception::take(vector) != 0
}

/// Patterns in registers that Stile moves only when it must.
mod registers {
    use super::{Outcome, check_eq, machine, mix};

    /// STAR, LSTAR, FMASK, KERNEL_GS_BASE, SYSENTER_EIP, a fixed-range MTRR.
    const MSRS: [u32; 6] = [0xc000_0081, 0xc000_0082, 0xc000_0084, 0xc000_0102, 0x176, 0x258];

    fn value(round: u64, index: usize) -> u64 {
        if index == MSRS.len() - 1 { [0, 0x0606_0606_0606_0606][round as usize & 1] } else { mix(round << 16 | index as u64) & 0x7fff_ffff }
    }

    pub fn set(round: u64) {
        let value = |n| value(round, n);
        // SAFETY: these registers are otherwise unused; SIMD is enabled for them.
        unsafe {
            for (n, register) in MSRS.into_iter().enumerate() {
                machine::wrmsr(register, value(n));
            }
            core::arch::asm!("mov {0}, cr4", "or {0}, 1 << 9", "mov cr4, {0}", "mov dr1, {1}", "mov cr2, {1}", "movq xmm14, {2}",
                out(reg) _, in(reg) mix(round), in(reg) mix(!round), options(nostack));
        }
    }

    pub fn check(round: u64) -> Outcome {
        let (mut debug, mut fault, mut vector): (u64, u64, u64);
        // SAFETY: reading these registers has no side effects.
        unsafe {
            for (n, register) in MSRS.into_iter().enumerate() {
                check_eq!(machine::rdmsr(register), value(round, n), "round {round}: MSR {register:#x}");
            }
            core::arch::asm!("mov {0}, dr1", "mov {1}, cr2", "movq {2}, xmm14", out(reg) debug, out(reg) fault, out(reg) vector, options(nostack));
        }
        check_eq!(debug, mix(round), "round {round}: DR1");
        check_eq!(fault, mix(round), "round {round}: CR2");
        check_eq!(vector, mix(!round), "round {round}: XMM14");
        Ok(())
    }
}
