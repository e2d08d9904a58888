//! A CPU that can never go on. The machine must still end, and the neighbour on the same processor go on.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use common::fail::Outcome;
use pc::console::println;
use pc::others;

use crate::cpu;

/// What is left to the last CPU, if it is not the only one.
pub fn run() {
    let Some(how) = crate::argument("last") else { return };
    if cpu::count() < 2 {
        return;
    }
    println!("hostile: the last CPU: {how}");
    let job = match how {
        "debug" => debug,
        _ => spin,
    };
    cpu::give_last(job);
    // It has begun, and goes on for so long that each CPU has its turn.
    cpu::wait(|| BEGUN.load(Ordering::SeqCst));
    for _ in 0..3_000_000 {
        core::hint::spin_loop();
    }
    others::forget();
}

static BEGUN: AtomicBool = AtomicBool::new(false);

fn spin() -> Outcome {
    BEGUN.store(true, Ordering::SeqCst);
    loop {
        core::hint::spin_loop();
    }
}

/// A breakpoint at the stack that debug exceptions push to: each one is the cause of the next, without an end.
fn debug() -> Outcome {
    let stack = cpu::exception_stack() - 8;
    BEGUN.store(true, Ordering::SeqCst);
    // SAFETY: none: this CPU is lost. DR7: breakpoint 0, at writes of 8 bytes.
    unsafe {
        asm!(
            "mov dr0, {stack}", "mov rax, 0x90402", "mov dr7, rax", ".byte 0xf1", "2: jmp 2b", stack = in(reg) stack,
            options(noreturn)
        )
    }
}
