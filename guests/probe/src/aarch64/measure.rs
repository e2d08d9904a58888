//! Loops between two reads of the virtual counter.

use super::cpu;
use super::sysreg::{instruction, mrs};

/// The ticks of `n` iterations of a loop. The loop itself has two instructions per iteration: see
/// [`crate::measure::net_ticks`].
macro_rules! loop_ticks {
    ($n:expr, [$($line:literal),*] $(, $($operands:tt)*)?) => {{
        let (start, end): (u64, u64);
        // SAFETY: the lines are one of the probe's operations, which names its clobbers; they access no Rust
        // memory.
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

/// The ticks of one execution of the lines, including the counter reads around it: see [`net_of_pairs`].
macro_rules! once_ticks {
    ([$($line:literal),*] $(, $($operands:tt)*)?) => {{
        let (start, end): (u64, u64);
        // SAFETY: the callers' lines change no registers but their operands, and no Rust memory.
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

/// Marks the begin of a measurement for an emulator's plugin (`plugins/counts`). Unallocated hints are no-ops
/// on every CPU, and never trap.
pub fn begin_section() {
    instruction!("hint #126");
}

/// Marks the end of a measurement.
pub fn end_section() {
    instruction!("hint #127");
}

/// The sum of `n` [`once_ticks`] minus the counter reads, whose `n` pairs are measured in the same way.
pub fn net_of_pairs(n: u64, ticks: u64) -> u64 {
    let empty: u64 = (0..n)
        .map(|turn| {
            shift_phase(turn);
            once_ticks!([])
        })
        .sum();
    ticks.saturating_sub(empty)
}

/// If a tick is many instructions, single measurements that always begin at the same phase of a tick would
/// have the same error. Waits for the start of a tick, and then for a number of instructions that differs
/// between iterations.
pub fn shift_phase(turn: u64) {
    let tick = cpu::now();
    while cpu::now() == tick {}
    // SAFETY: the loop changes a register that is an output, and touches no memory.
    unsafe { core::arch::asm!("2:", "subs {n}, {n}, #1", "b.ne 2b", n = inout(reg) (turn & 15) + 1 => _, options(nostack)) };
}

/// Converts ticks to thousandths of an instruction, with one instruction per nanosecond.
pub fn thousandths(ticks: u64) -> u128 {
    u128::from(ticks) * 1_000_000_000_000 / u128::from(mrs!("cntfrq_el0").max(1))
}
