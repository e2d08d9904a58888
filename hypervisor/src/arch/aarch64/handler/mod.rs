//! What each kind of exit does. Every handler is called from `exit.S` with the CPU's block and the syndrome, and says with its
//! [`super::exit::Outcome`] which line of the ledger the exit belongs to and whether its vCPU goes on.

mod data_abort;
mod hypercall;
mod interrupt;
mod other;
mod sysreg;
mod wait;

pub use interrupt::{deliver, idle as idle_interrupt, pull, synchronize};

use super::sysreg::{read_sysreg, write_sysreg};

/// The instruction is done: goes on after it.
#[inline(always)]
fn skip_instruction() {
    write_sysreg!("elr_el2", read_sysreg!("elr_el2").wrapping_add(4));
}
