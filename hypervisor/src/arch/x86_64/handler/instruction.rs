//! Instructions that exit unconditionally or by configuration: VMCALL and HLT.

use stile_apic::Message;
use stile_ledger::x86_64::{HLT_AT_ONCE, HLT_WAIT, reason};

use super::{TF, skip_instruction};
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::interrupts::{delivery, window};
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::cpu::{Leave, Outcome};

/// Result of an unknown hypercall, as in KVM's interface (KVM_ENOSYS).
pub const NO_SUCH_CALL: i64 = -1000;
/// The one implemented hypercall: multicast IPIs ("KVM Hypercalls", KVM_HC_SEND_IPI). CPUID does not announce it, but
/// test programs use it unconditionally.
pub const SEND_IPI: u32 = 10;

/// Handles a VMCALL that `exit.S` does not answer, with all general registers in the frame.
#[unsafe(no_mangle)]
pub extern "C" fn handle_vmcall(cpu: &mut Cpu) -> Outcome {
    let kernel = state::read(Field::GUEST_SS_RIGHTS) >> 5 & 0b11 == 0;
    let sends = cpu.frame.registers[gpr::RAX] as u32 == SEND_IPI && kernel && cr0::runs_64_bit_code();
    cpu.frame.registers[gpr::RAX] = if sends { send_ipis(cpu) } else { NO_SUCH_CALL as u64 };
    skip_instruction();
    delivery::pull(cpu);
    Outcome::again(reason::VMCALL.other())
}

/// KVM_HC_SEND_IPI: sends the interrupt of an ICR's low half to APICs of a set of 128 identifiers from a given one.
/// Returns their number.
fn send_ipis(cpu: &mut Cpu) -> u64 {
    let vcpu = cpu.vcpu();
    let registers = &cpu.frame.registers;
    let (first, icr) = (registers[gpr::RDX], registers[gpr::RSI]);
    let set = u128::from(registers[gpr::RCX]) << 64 | u128::from(registers[gpr::RBX]);
    let is_named = |apic: u32| u64::from(apic).checked_sub(first).is_some_and(|bit| bit < 128 && set >> bit & 1 != 0);
    let mut sent = 0;
    for apic in vcpu.vm().vcpus.iter().map(|vcpu| vcpu.arch.id).filter(|&apic| is_named(apic)) {
        if let Some(message) = Message::fixed_or_nmi(icr, apic) {
            delivery::send(vcpu.vm(), message, vcpu.arch.id, Some(&mut *cpu));
            sent += 1;
        }
    }
    sent
}

#[unsafe(no_mangle)]
pub extern "C" fn handle_hlt(cpu: &mut Cpu) -> Outcome {
    let flags = skip_instruction();
    // A pending single-step trap or interrupt comes before the wait.
    if flags & TF != 0 || flags & window::IF != 0 && delivery::end_hlt_at_once(cpu) {
        return Outcome::again(HLT_AT_ONCE);
    }
    begin_wait(cpu);
    Outcome::leave(HLT_WAIT)
}

/// Halts the vCPU, whose RIP is behind HLT.
#[inline(always)]
pub fn begin_wait(cpu: &mut Cpu) {
    cpu.loaded().context().halted = true;
    cpu.leave = Leave::Wait;
}
