//! Instructions that always exit, or exit because Stile wants them to: VMCALL and HLT.

use stile_ledger::x86_64::reason;

use super::{inject, is_stepping, skip_instruction};
use crate::arch::x86_64::cpu::Cpu;
use crate::arch::x86_64::exit::Outcome;
use crate::cpu::Leave;

/// VMCALL in user mode. (The kernel's is answered in `exit.S`.)
#[unsafe(no_mangle)]
extern "C" fn handle_vmcall_of_user(_cpu: &mut Cpu) -> Outcome {
    inject::undefined();
    Outcome::again(reason::VMCALL.other())
}

#[unsafe(no_mangle)]
extern "C" fn handle_hlt(cpu: &mut Cpu) -> Outcome {
    let stepping = is_stepping();
    skip_instruction();
    if stepping {
        // The trap comes before it would wait.
        return Outcome::again(reason::HLT.other());
    }
    cpu.leave = Leave::Wait;
    Outcome::leave(reason::HLT.other())
}
