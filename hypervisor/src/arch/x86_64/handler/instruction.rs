//! Instructions that always exit, or exit because Stile wants them to: VMCALL and HLT.

use stile_ledger::x86_64::reason;

use super::{inject, skip_instruction};
use crate::arch::x86_64::cpu::{Cpu, gpr};
use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::vmcs::{self, Field};
use crate::cpu::Leave;

/// Answer to a hypercall that there is not: -1000, as KVM's interface has it.
const NO_SUCH_CALL: u64 = -1000i64 as u64;

#[unsafe(no_mangle)]
extern "C" fn handle_vmcall(cpu: &mut Cpu) -> Outcome {
    // Only the guest's kernel may call: user mode gets what it would get with no hypervisor.
    if vmcs::read(Field::GUEST_SS_RIGHTS) >> 5 & 0b11 != 0 {
        inject::undefined();
        return Outcome::again(reason::VMCALL.other());
    }
    cpu.frame.registers[gpr::RAX] = NO_SUCH_CALL;
    skip_instruction();
    Outcome::again(reason::VMCALL.other())
}

#[unsafe(no_mangle)]
extern "C" fn handle_hlt(cpu: &mut Cpu) -> Outcome {
    skip_instruction();
    // The interrupt that comes next ends the wait, also right after STI (the manual, "HLT—Halt").
    let blocked = vmcs::read(Field::GUEST_INTERRUPTIBILITY);
    if blocked & 0b11 != 0 {
        vmcs::write(Field::GUEST_INTERRUPTIBILITY, blocked & !0b11);
    }
    cpu.leave = Leave::Wait;
    Outcome::leave(reason::HLT.other())
}
