//! A CPU that can never go on: its stack is nowhere, so each exception takes another one, for ever. The machine must still end.

use payload::mmu::{self, Memory};
use payload::prelude::*;

/// Leaves the last CPU in that state, if it is not the only one.
pub fn run() {
    let last = machine::cpus() - 1;
    if last == 0 {
        return;
    }
    println!("hostile: CPU {last} takes exceptions for ever");
    smp::give(last, || {
        // With a GiB of nothing below it: the stack pointer falls a little with each exception.
        let nowhere = mmu::window((1 << 37) + 0x3FFF_F000, Memory::Normal, false);
        // SAFETY: none: this CPU is lost.
        unsafe { core::arch::asm!("mov sp, {}", "str x0, [sp, #-16]!", "b .", in(reg) nowhere, options(noreturn)) }
    });
    wait::spin(5_000);
}
