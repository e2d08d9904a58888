//! Measures its share of a CPU, and its longest wait, while other VMs compete for the CPU.
//!
//! Command line: `crowd=spin`, `crowd=pause`, `crowd=ipi` or `crowd=nmi`: only competes, on all CPUs. Otherwise it must get
//! `least=N` percent (default 48), and wait for at most two slices of `slice_us=N` and `exits_us=N` (default 0).
#![no_std]
#![no_main]

use common::cpu_time::Share;
use pc::console::println;
use pc::lapic::{self, command};
use pc::{console, exception, machine, others};

pc::program!();

/// Slices to wait until the others are up, and to measure for.
const WARM_UP: u64 = 20;
const MEASURED: u64 = 60;

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite crowded");
    let line = machine::command_line(info);
    let text = |name: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    if let Some(kind) = text("crowd") {
        crowd(kind);
    }
    let number = |name, default| text(name).and_then(|text| text.parse().ok()).unwrap_or(default);
    let megahertz = u64::from(core::arch::x86_64::__cpuid(0x4000_0010).eax) / 1000;
    let slice = number("slice_us", 5000) * megahertz;
    // A step of the counter longer than this is time during which others ran.
    let gap = slice / 8;
    Share::measure(WARM_UP * slice, gap, machine::ticks);
    let share = Share::measure(MEASURED * slice, gap, machine::ticks);
    let (percent, longest) = (share.permille() / 10, share.longest);
    println!("crowded: {percent} % of the CPU; longest wait {longest} ticks, {}.{} slices", longest / slice, longest * 10 / slice % 10);
    // Stile's switches between the others, too.
    let most = 2 * slice + slice / 5 + number("exits_us", 0) * megahertz;
    let failed = u8::from(percent < number("least", 48) || longest > most);
    println!("{} crowded: at most {most} ticks", if failed == 0 { "PASS" } else { "FAIL" });
    println!("EXIT: STATUS={failed}");
    machine::off()
}

fn crowd(kind: &str) -> ! {
    let (first, siblings): (fn(), fn()) = match kind {
        "ipi" => (send, send),
        "nmi" => {
            // The first NMI is handled without end: the others stay blocked.
            exception::handle(2, Some(|_| spin()));
            (spin, send_nmis)
        }
        "pause" => (pause, pause),
        _ => (spin, spin),
    };
    lapic::enable();
    others::give(siblings);
    others::start();
    first();
    unreachable!()
}

fn spin() {
    loop {
        // SAFETY: an empty instruction, which prevents the loop from being optimized away.
        unsafe { core::arch::asm!("nop", options(nomem, nostack)) };
    }
}

fn pause() {
    loop {
        core::hint::spin_loop();
    }
}

/// Each NMI kicks the first CPU.
fn send_nmis() {
    loop {
        lapic::send(0, command::NMI | command::ASSERT);
    }
}

/// Interrupts are disabled: what arrives stays pending.
fn send() {
    loop {
        lapic::send(0, command::OTHERS | command::ASSERT | 0x40);
    }
}
