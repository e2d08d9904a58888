//! RDMSR and WRMSR of registers that are not passed to the guest (vm.rs has those).

use stile_apic::GeneralProtection;
use stile_ledger::x86_64::{key, reason};

use super::{inject, skip_instruction};
use crate::arch::x86_64::cpu::{Cpu, gpr};
use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::instructions::{cpuid, msr};
use crate::arch::x86_64::{interrupts, timer, virtual_apic};

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
    if let Some(value) = own(cpu, register) {
        match value {
            Ok(value) => give(cpu, value),
            Err(GeneralProtection) => inject::general_protection(),
        }
        return Outcome::again(row);
    }
    match CONSTANT.iter().find(|(number, _)| *number == register) {
        Some((_, value)) => give(cpu, *value),
        None => inject::general_protection(),
    }
    Outcome::again(row)
}

#[unsafe(no_mangle)]
extern "C" fn handle_wrmsr(cpu: &mut Cpu) -> Outcome {
    let register = cpu.frame.registers[gpr::RCX] as u32;
    let row = cpu.vcpu().with_ledger(|ledger| ledger.row_for(reason::WRMSR, key::msr(register)));
    let value = cpu.frame.registers[gpr::RDX] << 32 | cpu.frame.registers[gpr::RAX] & 0xffff_ffff;
    if let Some(done) = write_own(cpu, register, value) {
        match done {
            Ok(()) => {
                skip_instruction();
                interrupts::pull(cpu);
            }
            Err(GeneralProtection) => inject::general_protection(),
        }
    } else if CONSTANT.iter().any(|(number, _)| *number == register) {
        skip_instruction();
    } else {
        inject::general_protection();
    }
    Outcome::again(row)
}

/// Gives RDMSR's answer.
fn give(cpu: &mut Cpu, value: u64) {
    cpu.frame.registers[gpr::RAX] = value & 0xffff_ffff;
    cpu.frame.registers[gpr::RDX] = value >> 32;
    skip_instruction();
}

/// The local APIC's registers in x2APIC mode.
const X2APIC: core::ops::RangeInclusive<u32> = msr::X2APIC..=msr::X2APIC + 0xff;

/// Reads a register that the vCPU has for itself; nothing if it is none of those.
fn own(cpu: &mut Cpu, register: u32) -> Option<Result<u64, GeneralProtection>> {
    let apic = cpu.apic();
    Some(match register {
        _ if X2APIC.contains(&register) => apic.read_msr(register, timer::now()),
        msr::IA32_TSC_DEADLINE => Ok(apic.tsc_deadline()),
        _ => return None,
    })
}

/// Writes one.
fn write_own(cpu: &mut Cpu, register: u32, value: u64) -> Option<Result<(), GeneralProtection>> {
    let apic = cpu.apic();
    Some(match register {
        _ if X2APIC.contains(&register) => {
            let effect = apic.write_msr(register, value, timer::now());
            effect.map(|effect| interrupts::follow(cpu, effect))
        }
        msr::IA32_APIC_BASE => {
            let (old, done) = (apic.mode(), apic.set_base(value, cpuid(0x8000_0008, 0).eax as u8));
            let (mode, base) = (apic.mode(), apic.pages().base());
            cpu.apic_base = base;
            if mode != old {
                virtual_apic::write_controls(cpu);
            }
            done
        }
        msr::IA32_TSC_DEADLINE => {
            apic.set_tsc_deadline(value);
            let deadline = apic.timer_deadline();
            timer::set_guest_deadline(deadline);
            Ok(())
        }
        _ => return None,
    })
}
