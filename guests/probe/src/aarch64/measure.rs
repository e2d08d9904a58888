//! Loops between two reads of the virtual counter.

use super::cpu;
use super::sysreg::{instruction, mrs};

/// The ticks that so many turns of a loop take. The loop's own instructions are two a turn: see [`crate::measure::net_ticks`].
macro_rules! loop_ticks {
    ($n:expr, [$($line:literal),*] $(, $($operands:tt)*)?) => {{
        let (start, end): (u64, u64);
        // SAFETY: the lines are an operation of the probe's, which names what it changes; nothing of Rust's is in reach of it.
        unsafe {
            core::arch::asm!(
                "isb", "mrs {start}, cntvct_el0", "isb",
                "2:", $($line,)* "subs {n}, {n}, #1", "b.ne 2b",
                "isb", "mrs {end}, cntvct_el0",
                start = out(reg) start, end = out(reg) end, n = inout(reg) $n => _, $($($operands)*,)?
                options(nostack));
        }
        end - start
    }};
}

/// The ticks that one run of the lines takes, and the reads of the counter around it: see [`net_of_pairs`].
macro_rules! once_ticks {
    ([$($line:literal),*] $(, $($operands:tt)*)?) => {{
        let (start, end): (u64, u64);
        // SAFETY: as for `loop_ticks`.
        unsafe {
            core::arch::asm!(
                "isb", "mrs {start}, cntvct_el0", $($line,)* "isb", "mrs {end}, cntvct_el0",
                start = out(reg) start, end = out(reg) end, $($($operands)*,)?
                options(nostack));
        }
        end - start
    }};
}

pub(crate) use {loop_ticks, once_ticks};

/// Tells an emulator's plugin (`plugins/counts`) that what runs from here on is measured. Unallocated hints do nothing, anywhere, and never
/// trap.
pub fn begin_section() {
    instruction!("hint #126");
}

/// Tells it that the measured part is over.
pub fn end_section() {
    instruction!("hint #127");
}

/// What is left of the sum of `n` [`once_ticks`] without the reads of the counter, whose `n` pairs are taken at the same turns.
pub fn net_of_pairs(n: u64, ticks: u64) -> u64 {
    let empty: u64 = (0..n)
        .map(|turn| {
            shift_phase(turn);
            once_ticks!([])
        })
        .sum();
    ticks.saturating_sub(empty)
}

/// Where a tick is many instructions, single measurements that always begin at the same point between two ticks would all err alike.
/// Waits for the start of a tick, and then for a number of instructions that differs from turn to turn.
pub fn shift_phase(turn: u64) {
    let tick = cpu::now();
    while cpu::now() == tick {}
    // SAFETY: counts a register down.
    unsafe { core::arch::asm!("2:", "subs {n}, {n}, #1", "b.ne 2b", n = inout(reg) (turn & 15) + 1 => _, options(nostack)) };
}

/// So many ticks in thousandths of an instruction, where an instruction takes a nanosecond.
pub fn thousandths(ticks: u64) -> u128 {
    u128::from(ticks) * 1_000_000_000_000 / u128::from(mrs!("cntfrq_el0").max(1))
}
