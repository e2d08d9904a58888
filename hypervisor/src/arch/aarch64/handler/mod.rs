//! Exit handlers, one file for each kind of exit. `exit.S` calls them with the CPU's block and the syndrome; the
//! returned [`crate::cpu::Outcome`] has the ledger's row and whether the vCPU is re-entered.

mod data_abort;
mod hypercall;
mod idle;
mod interrupt;
mod other;
mod sysreg;
mod wait;

pub use data_abort::{faulting_ipa, handle_data_abort as data_abort};
pub use hypercall::secure_call;
pub use idle::idle as idle_interrupt;
pub use interrupt::other_irq;
pub use other::handle_other as other;
pub use sysreg::handle_sysreg as sysreg;
pub use wait::handle_wfx as wfx;

use stile_sysreg::step;
use stile_sysreg::syndrome::Esr;

use crate::arch::aarch64::host::sysreg::{read_sysreg, write_sysreg};

/// Skips the trapped instruction, in handlers that do not return [`crate::cpu::Outcome::done`].
pub fn skip_instruction() {
    if step::changes_pstate(read_sysreg!(SPSR_EL2)) {
        return skip_rare();
    }
    write_sysreg!(ELR_EL2, read_sysreg!(ELR_EL2).wrapping_add(4));
}

/// Skips the trapped instruction where that may change more than the program counter ([`step`]): SPSR_EL2.SS, and in
/// AArch32 state the IT bits. An AArch32 instruction may have 16 bits.
#[cold]
#[unsafe(no_mangle)]
extern "C" fn skip_rare() {
    let esr = Esr(read_sysreg!(ESR_EL2));
    write_sysreg!(SPSR_EL2, step::after_instruction(read_sysreg!(SPSR_EL2)));
    write_sysreg!(ELR_EL2, read_sysreg!(ELR_EL2).wrapping_add(esr.instruction_bytes()));
}
