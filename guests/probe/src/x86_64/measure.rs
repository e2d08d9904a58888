//! Loops between two reads of the time-stamp counter.

use super::{cpu, ports};

/// The ticks of `n` iterations of a loop. The loop itself has two instructions per iteration: see
/// [`crate::measure::net_ticks`].
///
/// The loop is aligned to 16 bytes, so that its first instruction lies in one page: fetching one that crosses
/// a page costs an emulating hypervisor more.
///
/// A loop in which two CPUs wait for each other comes after `within_a_page`: Bochs ends a CPU's turn where its code leaves a page.
///
/// The lines may change RAX, RBX and RDX. R8 and R9 belong to the loop; the caller names other clobbers.
macro_rules! loop_ticks {
    ($n:expr, [$($line:literal),*] $(, $($operands:tt)*)?) => {
        $crate::arch::loop_ticks!($n, after ".balign 16", [$($line),*] $(, $($operands)*)?)
    };
    ($n:expr, after $align:expr, [$($line:literal),*] $(, $($operands:tt)*)?) => {{
        let (start, end): (u64, u64);
        // SAFETY: the lines are one of the probe's operations, which names its clobbers; they access no Rust
        // memory.
        unsafe {
            core::arch::asm!(
                "push rbx",
                "rdtsc", "shl rdx, 32", "or rax, rdx", "mov r8, rax",
                $align, "2:", $($line,)* "dec r9", "jnz 2b",
                "rdtsc", "shl rdx, 32", "or rax, rdx",
                "pop rbx",
                out("r8") start, inout("r9") $n => _, out("rax") end, out("rdx") _, $($($operands)*,)?);
        }
        end - start
    }};
}

/// Alignment of loops of up to 64 bytes, which takes one instruction wherever the code is.
macro_rules! within_a_page {
    () => {
        "jmp 2f\n.balign 64"
    };
}

pub(crate) use {loop_ticks, within_a_page};

/// Microseconds after which a host has forwarded all output: a line takes 10 ms at 115,200 baud.
const PASSED_ON: u64 = 20_000;

/// The POST code port: hosts that count exits watch writes to it. Others ignore it.
const MARK: u16 = 0x80;

/// Marks for the emulator: prefetch hints of addresses at which there is nothing, which do nothing anywhere, and never exit.
const BEGIN: usize = 0x5354_0001;
const END: usize = 0x5354_0002;

/// Begins what is measured: once the host has nothing else to do.
pub fn begin_section() {
    cpu::pause(PASSED_ON);
    ports::out8(MARK, 1);
    hint(BEGIN);
}

/// Ends what is measured.
pub fn end_section() {
    hint(END);
    ports::out8(MARK, 2);
}

/// A step of a loop without PAUSE, on which some hypervisors take the CPU away.
pub fn no_operation() {
    // SAFETY: NOP changes no register and no memory.
    unsafe { core::arch::asm!("nop", options(nomem, nostack, preserves_flags)) };
}

fn hint(address: usize) {
    // SAFETY: a hint, which accesses nothing as far as programs can tell. What is measured is neither before nor after it.
    unsafe { core::arch::asm!("prefetchnta [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// So many ticks in thousandths of an instruction, where an instruction takes a tick.
pub fn thousandths(ticks: u64) -> u128 {
    u128::from(ticks) * 1000
}
