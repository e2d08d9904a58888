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
    /// Execution state: AArch32.
    const AARCH32: u64 = 1 << 4;
    /// Software step: the instruction that was to be stepped is done.
    const SS: u64 = 1 << 21;
    let spsr = read_sysreg!("spsr_el2");
    let mut length = 4;
    if spsr & (AARCH32 | SS) != 0 {
        length = skip_rare(spsr & !SS);
    }
    write_sysreg!("elr_el2", read_sysreg!("elr_el2").wrapping_add(length));
}

/// As above, with a PSTATE that changes, too. Returns the instruction's length.
#[cold]
fn skip_rare(spsr: u64) -> u64 {
    use stile_sysreg::syndrome::Esr;

    let esr = Esr(read_sysreg!("esr_el2"));
    let mut new = spsr;
    if spsr & 1 << 4 != 0 {
        // ITSTATE: bits 7 to 2 are SPSR's 15 to 10, bits 1 and 0 its 26 and 25 (Arm ARM, AArch32.ITAdvance).
        let state = spsr >> 8 & 0xfc | spsr >> 25 & 3;
        let next = if state & 7 == 0 { 0 } else { state & 0xe0 | state << 1 & 0x1f };
        new = spsr & !(0xfc << 8 | 3 << 25) | (next & 0xfc) << 8 | (next & 3) << 25;
    }
    write_sysreg!("spsr_el2", new);
    esr.instruction_bytes()
}
