//! Cost of a system call of a host program, whose kernel does no work in it. At virtual EL2
//! the return from it is an ERET that traps.

use std::arch::asm;

use crate::cpu;
use crate::error::Error;

/// The argument's name; its value is the number of system calls to measure.
pub const WORD: &str = "syscalls";

/// The number of getppid, which takes no arguments and can't fail (Linux, `asm-generic/unistd.h`).
const GETPPID: u64 = 173;

/// Ticks of `count` loop iterations between two reads of the virtual counter, surrounded by marks for an
/// emulator's plugin (`plugins/counts`).
macro_rules! ticks {
    ($count:expr, $begin:literal, $line:literal, $end:literal) => {{
        let (start, end): (u64, u64);
        // SAFETY: the line is empty or a system call that accesses no memory of the program. The kernel
        // changes x0.
        unsafe {
            asm!(
                $begin, "isb", "mrs {start}, cntvct_el0", "isb",
                "2:", $line, "subs {n}, {n}, #1", "b.ne 2b",
                "isb", "mrs {end}, cntvct_el0", $end,
                start = out(reg) start, end = out(reg) end, n = inout(reg) $count => _,
                in("x8") GETPPID, out("x0") _, options(nostack));
        }
        end - start
    }};
}

/// Measures `count` (at least 1) system calls, and prints a line in the probe's format.
pub fn measure(count: u64) -> Result<(), Error> {
    if count == 0 {
        return Err("the number of system calls must be at least 1".into());
    }
    cpu::pin(0);
    // Warm-up.
    ticks!(count, "", "svc #0", "");
    let ticks = ticks!(count, "hint #126", "svc #0", "hint #127");
    let net = ticks.saturating_sub(ticks!(count, "", "", ""));
    let frequency: u64;
    // SAFETY: the instruction only reads a register, into one that is an output.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack, preserves_flags)) };
    // One instruction takes a nanosecond.
    let instructions = net as f64 * 1e9 / frequency.max(1) as f64 / count as f64;
    println!("{{\"operation\":\"l1_syscall\",\"instructions\":{instructions:.3},\"iterations\":{count}}}");
    Ok(())
}
