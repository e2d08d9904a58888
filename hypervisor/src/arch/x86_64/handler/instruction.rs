//! Instructions that always exit, or exit because Stile wants them to: VMCALL and HLT.

use stile_ledger::x86_64::reason;

use super::{inject, skip_instruction};
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
    skip_instruction();
    cpu.leave = Leave::Wait;
    Outcome::leave(reason::HLT.other())
}
