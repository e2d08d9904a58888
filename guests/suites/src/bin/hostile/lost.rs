//! A CPU in an infinite exception loop: its vectors load from an unmapped address, so each exception causes
//! another. The machine must still end.

use payload::mmu::{self, Memory};
use payload::prelude::*;

core::arch::global_asm!(
    ".section .text.lost, \"ax\"",
    ".balign 0x800",
    ".global lost_vectors",
    "lost_vectors:",
    ".rept 16",
    ".balign 0x80",
    "ldr x0, [x1]",
    ".endr",
    ".balign 0x80",
);

unsafe extern "C" {
    fn lost_vectors();
}

/// Puts the last CPU in that state, if it is not the only one.
pub fn run() {
    let last = machine::cpus() - 1;
    if last == 0 || smp::start_all().is_err() {
        return;
    }
    begin(last);
    wait::spin(5_000);
}

/// Leaves a CPU in that state. It must be on.
pub fn begin(cpu: usize) {
    println!("hostile: CPU {cpu} takes exceptions for ever");
    smp::give(cpu, || {
        msr!("VBAR_EL1", lost_vectors as *const () as u64);
        let nowhere = mmu::window(0x0B00_0000, Memory::Device, false);
        // SAFETY: not sound on purpose: this CPU takes exceptions from here on, and no Rust code runs on it.
        unsafe { core::arch::asm!("ldr x0, [x1]", "b .", in("x1") nowhere, options(noreturn)) }
    });
}
