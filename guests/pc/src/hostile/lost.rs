//! A CPU that can never continue. The machine must still end, and the neighbour on the same processor must
//! continue.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use common::fail::Outcome;
use pc::console::println;
use pc::others;

use crate::{arguments, cpu};

/// Runs the last CPU's final function, if it is not the only CPU.
pub fn run() {
    let Some(how) = arguments::argument("last") else { return };
    if cpu::count() < 2 {
        return;
    }
    println!("hostile: the last CPU: {how}");
    let job = match how {
        "debug" => debug,
        _ => spin,
    };
    cpu::give_last(job);
    // It has begun, and runs long enough for each CPU to be scheduled.
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

/// A breakpoint at the stack that debug exceptions push to: each causes the next, infinitely.
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
