//! Ends in a state from which no guest can continue: a jump to unmapped memory, with the exception vectors in unmapped memory.
#![no_std]
#![no_main]

use payload::entry::Entry;
use payload::{mmu, msr, println};

payload::program!(main);

/// After the devices: unassigned on the board.
const NOWHERE: u64 = 0x0B00_0000;

fn main(_: &Entry) -> ! {
    println!("crash: jumping to {NOWHERE:#x} with VBAR_EL1 there as well");
    let nowhere = mmu::window(NOWHERE, mmu::Memory::Normal, true);
    msr!("VBAR_EL1", nowhere);
    // SAFETY: not sound on purpose: the program ends here, and nothing of it runs after the exception.
    unsafe { core::arch::asm!("br {}", in(reg) nowhere, options(noreturn)) }
}
