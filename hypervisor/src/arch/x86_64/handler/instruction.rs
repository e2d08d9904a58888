//! Instructions that always exit, or exit because Stile wants them to: VMCALL and HLT.

use stile_ledger::x86_64::reason;

use super::{inject, is_stepping, skip_instruction};
use crate::arch::x86_64::cpu::{Cpu, gpr};
use crate::arch::x86_64::exit::{NO_SUCH_CALL, Outcome};
use crate::arch::x86_64::vmcs::{self, Field};
use crate::cpu::Leave;

/// VMCALL in user mode, which gets what it would get with no hypervisor; and the kernel's that is not answered in `exit.S`.
#[unsafe(no_mangle)]
extern "C" fn handle_vmcall(cpu: &mut Cpu) -> Outcome {
    if vmcs::read(Field::GUEST_SS_RIGHTS) >> 5 & 0b11 != 0 {
        inject::undefined();
    } else {
        cpu.frame.registers[gpr::RAX] = NO_SUCH_CALL as u64;
        skip_instruction();
    }
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
    // SAFETY: the vCPU is loaded here.
    unsafe { cpu.vcpu().arch.world() }.halted = true;
    cpu.leave = Leave::Wait;
    Outcome::leave(reason::HLT.other())
}
