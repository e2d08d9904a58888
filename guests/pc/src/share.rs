//! A neighbour that measures its share of a CPU by the counter, which in Bochs counts instructions.
//!
//! Command line: `least=N`: the required percentage (default 1), `chunks=N`: the amount of computation
//! (default 4000).
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use common::share;
use pc::console::println;
use pc::{console, exception, machine};

pc::program!();

#[unsafe(no_mangle)]
extern "C" fn main(_magic: u32, info: u32) -> ! {
    exception::setup();
    console::setup();
    println!("suite share");
    // Since the machine was turned on.
    println!("share: starts at tick {}", machine::ticks());
    let line = machine::command_line(info);
    let number = |name: &str, default| {
        let found = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
        found.unwrap_or(default)
    };
    let (least, chunks) = (number("least", 1), number("chunks", 4000));
    let (stolen, start) = (stolen_time(), machine::ticks());
    let percent = share::percent(machine::ticks, compute, chunks);
    let kilohertz = u64::from(core::arch::x86_64::__cpuid(0x4000_0010).eax);
    let microseconds = (machine::ticks() - start) * 1000 / kilohertz.max(1);
    let stolen = stolen.map(|stolen| stolen() / 1000);
    // Told at the ends of slices; the last one is under way.
    let missing = microseconds * (100 - percent.min(100)) / 100;
    let is_told = stolen.is_some_and(|stolen| stolen * 10 >= missing * 8 && stolen <= missing + microseconds / 10);
    println!("share: {stolen:?} us stolen, {missing} us of {microseconds} went elsewhere");
    let failed = u8::from(percent < least || !is_told);
    println!("{} share: {percent} % of the CPU, at least {least} wanted", if failed == 0 { "PASS" } else { "FAIL" });
    println!("EXIT: STATUS={failed}");
    machine::off()
}

/// The structure of KVM's interface that the hypervisor writes: stolen time in nanoseconds, version, and more.
#[repr(C, align(64))]
struct StealTime([AtomicU64; 8]);
static STEAL_TIME: StealTime = StealTime([const { AtomicU64::new(0) }; 8]);

/// Registers for stolen time as Linux does, and returns a function that reads it, in nanoseconds; `None` if not supported.
fn stolen_time() -> Option<impl Fn() -> u64> {
    const FEATURES: u32 = 0x4000_0101;
    const STEAL_TIME_FEATURE: u32 = 1 << 5;
    const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;
    if core::arch::x86_64::__cpuid(FEATURES).eax & STEAL_TIME_FEATURE == 0 {
        return None;
    }
    // SAFETY: the register names memory of the program's, for what other CPUs do not write, as atomics.
    unsafe { machine::wrmsr(MSR_KVM_STEAL_TIME, &raw const STEAL_TIME as u64 | 1) };
    Some(|| STEAL_TIME.0[0].load(Ordering::Relaxed))
}

/// 20,000 instructions.
fn compute() {
    // SAFETY: counts a register of its own down, and accesses no memory.
    unsafe { core::arch::asm!("2: dec {n}", "jnz 2b", n = inout(reg) 10_000u64 => _, options(nomem, nostack)) };
}
