//! RDMSR and WRMSR of registers that are not passed to the guest (vm.rs has those).

use stile_ledger::x86_64::{key, reason};

use super::{inject, skip_instruction};
use crate::arch::x86_64::cpu::{Cpu, gpr};
use crate::arch::x86_64::exit::Outcome;

/// Registers that read as a constant and take any write, which has no effect: guests look at them without asking CPUID whether they
/// are there (the manual, "Architectural MSRs").
const CONSTANT: [(u32, u64); 6] = [
    (0x17, 0),                      // IA32_PLATFORM_ID
    (0x8b, 0),                      // IA32_BIOS_SIGN_ID
    (0xce, 0),                      // MSR_PLATFORM_INFO
    (0x140, 0),                     // MSR_MISC_FEATURES_ENABLES
    (0x1a0, 1 | 1 << 11 | 1 << 12), // IA32_MISC_ENABLE: fast strings; no BTS, no PEBS
    (0x1d9, 0),                     // IA32_DEBUGCTL
];

#[unsafe(no_mangle)]
extern "C" fn handle_rdmsr(cpu: &mut Cpu) -> Outcome {
    let register = cpu.frame.registers[gpr::RCX] as u32;
    let row = cpu.vcpu().with_ledger(|ledger| ledger.row_for(reason::RDMSR, key::msr(register)));
    match CONSTANT.iter().find(|(number, _)| *number == register) {
        Some((_, value)) => {
            cpu.frame.registers[gpr::RAX] = value & 0xffff_ffff;
            cpu.frame.registers[gpr::RDX] = value >> 32;
            skip_instruction();
        }
        None => inject::general_protection(),
    }
    Outcome::again(row)
}

#[unsafe(no_mangle)]
extern "C" fn handle_wrmsr(cpu: &mut Cpu) -> Outcome {
    let register = cpu.frame.registers[gpr::RCX] as u32;
    let row = cpu.vcpu().with_ledger(|ledger| ledger.row_for(reason::WRMSR, key::msr(register)));
    if CONSTANT.iter().any(|(number, _)| *number == register) {
        skip_instruction();
    } else {
        inject::general_protection();
    }
    Outcome::again(row)
}
