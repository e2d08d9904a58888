//! Instructions that always exit, or exit because Stile wants them to: VMCALL and HLT.

use stile_ledger::x86_64::reason;

use super::{TF, skip_instruction};
use crate::arch::x86_64::cpu::{Cpu, gpr};
use crate::arch::x86_64::exit::{NO_SUCH_CALL, Outcome};
use crate::cpu::Leave;

/// VMCALL that is not answered in `exit.S`.
#[unsafe(no_mangle)]
extern "C" fn handle_vmcall(cpu: &mut Cpu) -> Outcome {
    cpu.frame.registers[gpr::RAX] = NO_SUCH_CALL as u64;
    skip_instruction();
    Outcome::again(reason::VMCALL.other())
}

#[unsafe(no_mangle)]
extern "C" fn handle_hlt(cpu: &mut Cpu) -> Outcome {
    if skip_instruction() & TF != 0 {
        // The trap comes before it would wait.
        return Outcome::again(reason::HLT.other());
    }
    cpu.leave = Leave::Wait;
    Outcome::leave(reason::HLT.other())
}
