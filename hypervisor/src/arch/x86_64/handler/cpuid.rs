//! CPUID of leaves outside the VM's table.

use stile_board::pc::features;
use stile_ledger::x86_64::reason;

use super::skip_instruction;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::vm::cpuid::answer;
use crate::cpu::Outcome;

/// In IA32_APIC_BASE.
const ENABLED: u64 = 1 << 11;

#[unsafe(no_mangle)]
pub extern "C" fn handle_cpuid(cpu: &mut Cpu) -> Outcome {
    let registers = &mut cpu.frame.registers;
    let (leaf, subleaf) = (registers[gpr::RAX] as u32, registers[gpr::RCX] as u32);
    let vcpu = cpu.vcpu();
    let answer = answer(leaf, subleaf, vcpu.arch.id, vcpu.vm().arch.topology, cpu.apic_base & ENABLED != 0);
    let features = match &vcpu.vm().arch.direct {
        Some(direct) if leaf == features::LEAF => direct.features(vcpu.vm().techniques.timer),
        _ => 0,
    };
    let answer = match &vcpu.vm().arch.nested {
        Some(offer) => offer.cpuid(leaf, answer, vcpu.vm().arch.topology.vcpus() as u32),
        None => answer,
    };
    let registers = &mut cpu.frame.registers;
    registers[gpr::RAX] = (answer.eax | features).into();
    registers[gpr::RBX] = answer.ebx.into();
    registers[gpr::RCX] = answer.ecx.into();
    registers[gpr::RDX] = answer.edx.into();
    skip_instruction();
    Outcome::again(reason::CPUID.other())
}
