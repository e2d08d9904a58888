//! Tells the emulated PC that a measurement begins or ends: `mark begin`, `mark end`. Elsewhere it does nothing.

use std::arch::asm;
use std::process::ExitCode;

/// Addresses that the emulator knows (`cli/src/emulator/bochs/instrument.cc`).
const BEGIN: usize = 0x5354_0001;
const END: usize = 0x5354_0002;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("begin") => prefetch(BEGIN),
        Some("end") => prefetch(END),
        _ => {
            eprintln!("usage: mark begin|end");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn prefetch(address: usize) {
    // SAFETY: PREFETCHT0 is a hint that accesses nothing and faults at no address (Intel SDM, volume 2, "PREFETCHh").
    unsafe { asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}
