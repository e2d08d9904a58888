//! RDMSR and WRMSR of registers that are not passed through (`vmx/msr_bitmap.rs`, `svm/parts.rs`).

use core::sync::atomic::Ordering;

use stile_apic::GeneralProtection;
use stile_board::pc;
use stile_ledger::x86_64::{self as rows, key, reason};
use stile_speculation::x86_64::control;

use super::skip_instruction;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::host::instructions::{cpuid, msr};
use crate::arch::x86_64::host::{speculation, timer};
use crate::arch::x86_64::interrupts::{deadline, delivery, window};
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vcpu::msrs::{EmulatedMsrs, MISC_READ_ONLY, MISC_WRITABLE, MTRR_HAS_FIXED, is_mtrr_def_type};
use crate::arch::x86_64::virt::nested;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::arch::x86_64::virt::{direct, virtual_apic};
use crate::cpu;
use crate::cpu::Outcome;

/// Registers that read as a constant and ignore writes: guests access them without checking CPUID (the manual,
/// "Architectural MSRs").
const CONSTANT: [(u32, u64); 3] = [
    (0x17, 0),  // IA32_PLATFORM_ID
    (0x8b, 0),  // IA32_BIOS_SIGN_ID
    (0x140, 0), // MSR_MISC_FEATURES_ENABLES
];

/// Converts a time of the guest's TSC to the CPU's; past times stay past.
fn deadline_of(msrs: &EmulatedMsrs, guest: u64) -> u64 {
    let offset = msrs.tsc_offset();
    if offset == 0 || guest == 0 {
        return guest;
    }
    let now = timer::now();
    let left = guest.saturating_sub(now.wrapping_add(offset));
    now.saturating_add(left).max(1)
}

#[unsafe(no_mangle)]
pub extern "C" fn handle_rdmsr(cpu: &mut Cpu) -> Outcome {
    let register = cpu.frame.registers[gpr::RCX] as u32;
    let row = cpu.loaded().ledger().row_for(reason::RDMSR, key::msr(register));
    if let Some(value) = own(cpu, register) {
        match value {
            Ok(value) => give(cpu, value),
            Err(GeneralProtection) => inject::general_protection(),
        }
        return Outcome::again(row);
    }
    match CONSTANT.iter().find(|(number, _)| *number == register) {
        Some((_, value)) => give(cpu, *value),
        None => match nested::read_msr(cpu, register) {
            Ok(value) => give(cpu, value),
            Err(GeneralProtection) => inject::general_protection(),
        },
    }
    Outcome::again(row)
}

#[unsafe(no_mangle)]
pub extern "C" fn handle_wrmsr(cpu: &mut Cpu) -> Outcome {
    let register = cpu.frame.registers[gpr::RCX] as u32;
    let value = cpu.frame.registers[gpr::RDX] << 32 | cpu.frame.registers[gpr::RAX] & 0xffff_ffff;
    if register == msr::IA32_TSC_DEADLINE {
        // If it has passed already, this CPU's timer expires immediately.
        set_tsc_deadline(cpu, value);
        skip_instruction();
        return Outcome::again(rows::WRMSR_TSC_DEADLINE);
    }
    if register == X2APIC_EOI && value == 0 && cpu.has_x2apic() && delivery::end_at_once(cpu) {
        skip_instruction();
        return Outcome::again(rows::WRMSR_X2APIC_EOI);
    }
    if register == X2APIC_SELF_IPI && cpu.has_x2apic() && matches!(value, 16..=0xff) {
        let flags = skip_instruction();
        delivery::interrupt_self(cpu, value as u8, flags & window::IF);
        return Outcome::again(rows::WRMSR_X2APIC_SELF_IPI);
    }
    write_less_frequent(cpu, register, value)
}

/// Handles the ICR, most of whose writes send a fixed interrupt to one vCPU, and all other registers. (A fourth
/// comparison in [`handle_wrmsr`] would be compiled to a search.)
#[inline(never)]
fn write_less_frequent(cpu: &mut Cpu, register: u32, value: u64) -> Outcome {
    if register == X2APIC_ICR
        && cpu.has_x2apic()
        && let Some((to, vector)) = cpu.apic().send_to_one(value)
    {
        let flags = skip_instruction();
        delivery::send_to_one(cpu, to, vector, flags & window::IF);
        return Outcome::again(rows::WRMSR_X2APIC_ICR);
    }
    write_any(cpu, register, value)
}

fn set_tsc_deadline(cpu: &mut Cpu, value: u64) {
    let deadline = deadline_of(&cpu.vcpu().arch.msrs, value);
    cpu.apic().set_tsc_deadline(deadline);
    deadline::update(cpu);
}

#[inline(never)]
fn write_any(cpu: &mut Cpu, register: u32, value: u64) -> Outcome {
    let row = match register {
        X2APIC_EOI => rows::WRMSR_X2APIC_EOI,
        X2APIC_ICR => rows::WRMSR_X2APIC_ICR,
        X2APIC_SELF_IPI => rows::WRMSR_X2APIC_SELF_IPI,
        _ => {
            if register == X2APIC_SPURIOUS && value & APIC_ENABLED == 0 {
                direct::end(cpu);
            }
            cpu.loaded().ledger().row_for(reason::WRMSR, key::msr(register))
        }
    };
    if let Some(done) = write_own(cpu, register, value) {
        match done {
            Ok(()) => {
                skip_instruction();
                delivery::pull(cpu);
            }
            Err(GeneralProtection) => inject::general_protection(),
        }
    } else if CONSTANT.iter().any(|(number, _)| *number == register) {
        skip_instruction();
    } else {
        match nested::write_msr(cpu, register, value) {
            Ok(()) => {
                skip_instruction();
            }
            Err(GeneralProtection) => inject::general_protection(),
        }
    }
    Outcome::again(row)
}

/// Sets RDMSR's result.
fn give(cpu: &mut Cpu, value: u64) {
    cpu.frame.registers[gpr::RAX] = value & 0xffff_ffff;
    cpu.frame.registers[gpr::RDX] = value >> 32;
    skip_instruction();
}

/// The local APIC's registers in x2APIC mode.
const X2APIC: core::ops::RangeInclusive<u32> = msr::X2APIC..=msr::X2APIC + 0xff;
const X2APIC_EOI: u32 = msr::X2APIC + 0x0b;
const X2APIC_SPURIOUS: u32 = msr::X2APIC + 0x0f;
/// In that register.
const APIC_ENABLED: u64 = 1 << 8;
const X2APIC_ICR: u32 = msr::X2APIC + 0x30;
const X2APIC_SELF_IPI: u32 = msr::X2APIC + 0x3f;

/// Reads a register of the vCPU; `None` if it is not one.
fn own(cpu: &mut Cpu, register: u32) -> Option<Result<u64, GeneralProtection>> {
    let vcpu = &cpu.vcpu().arch;
    Some(match register {
        _ if X2APIC.contains(&register) => cpu.apic().read_msr(register, timer::now()),
        // Only if an expiry leaves it unchanged.
        msr::IA32_TSC_DEADLINE if cpu.apic().lent_timer().is_some() => {
            let deadline = timer::deadline();
            Ok(if deadline > timer::now() { deadline } else { 0 })
        }
        msr::IA32_TSC_DEADLINE => {
            let deadline = cpu.apic().tsc_deadline();
            Ok(if deadline == 0 { 0 } else { deadline.wrapping_add(vcpu.msrs.tsc_offset()) })
        }
        // `exit.S` usually answers.
        msr::IA32_APIC_BASE => Ok(cpu.apic_base),
        // Reads by the guest do not exit; this one is for an MSR list of L1's.
        msr::TSC => Ok(timer::now().wrapping_add(vcpu.msrs.tsc_offset())),
        msr::TSC_ADJUST => Ok(vcpu.msrs.tsc_adjust.load(Ordering::Relaxed)),
        msr::MISC_ENABLE => Ok(vcpu.msrs.misc_enable.load(Ordering::Relaxed)),
        msr::DEBUGCTL => Ok(state::read(Field::GUEST_DEBUGCTL)),
        // No machine-check banks.
        msr::MCG_CAP | msr::MCG_STATUS => Ok(0),
        msr::MTRR_CAP => Ok(MTRR_HAS_FIXED),
        msr::MTRR_DEF_TYPE => Ok(vcpu.msrs.mtrr_def_type.load(Ordering::Relaxed)),
        pc::msr::IPI_CONTROL => return direct::control(cpu).map(Ok),
        _ => return vcpu.msrs.rare(register).map(Ok),
    })
}

/// Writes one.
fn write_own(cpu: &mut Cpu, register: u32, value: u64) -> Option<Result<(), GeneralProtection>> {
    /// IA32_DEBUGCTL bits available to guests: LBR, which has no effect, and BTF.
    const LBR: u64 = 1 << 0;
    const BTF: u64 = 1 << 1;
    let vcpu = cpu.vcpu();
    let msrs = &vcpu.arch.msrs;
    let accept = |valid: bool| if valid { Ok(()) } else { Err(GeneralProtection) };
    Some(match register {
        _ if X2APIC.contains(&register) => {
            let effect = cpu.apic().write_msr(register, value, timer::now());
            effect.map(|effect| delivery::apply(cpu, effect))
        }
        msr::IA32_APIC_BASE => {
            let old = cpu.apic_base;
            deadline::reclaim(cpu);
            let done = cpu.apic().set_base(value, cpuid(0x8000_0008, 0).eax as u8);
            cpu.set_apic_base(vcpu.arch.pages.base());
            if cpu.apic_base != old {
                direct::end(cpu);
                virtual_apic::moved(cpu);
            }
            deadline::update(cpu);
            done
        }
        msr::TSC | msr::TSC_ADJUST => {
            // A past deadline stays past when the counter moves.
            deadline::reclaim(cpu);
            cpu.apic().expire_timer(timer::now());
            let deadline = cpu.apic().tsc_deadline().wrapping_add(msrs.tsc_offset());
            let old = match register {
                msr::TSC => timer::now().wrapping_add(msrs.tsc_offset()),
                _ => msrs.tsc_adjust.load(Ordering::Relaxed),
            };
            msrs.move_tsc(value.wrapping_sub(old));
            if cpu.apic().tsc_deadline() != 0 {
                cpu.apic().set_tsc_deadline(deadline_of(msrs, deadline));
            }
            deadline::update(cpu);
            Ok(())
        }
        msr::MISC_ENABLE => accept(value & !(MISC_WRITABLE | MISC_READ_ONLY) == 0).map(|()| {
            msrs.misc_enable.store(value & MISC_WRITABLE | MISC_READ_ONLY, Ordering::Relaxed);
        }),
        msr::DEBUGCTL => accept(value & !(LBR | BTF) == 0).map(|()| state::write(Field::GUEST_DEBUGCTL, value & BTF)),
        msr::MCG_STATUS => accept(value == 0),
        msr::MTRR_DEF_TYPE => accept(is_mtrr_def_type(value)).map(|()| msrs.mtrr_def_type.store(value, Ordering::Relaxed)),
        msr::MCG_CAP | msr::MTRR_CAP => Err(GeneralProtection),
        pc::msr::IPI_CONTROL => return direct::set_control(cpu, value),
        pc::msr::IPI_COMMAND => return direct::command(cpu, value),
        msr::KVM_STEAL_TIME => accept(msrs.stolen_time.write(value)).map(|()| cpu::stolen::begin(vcpu)),
        msr::IA32_SPEC_CTRL | msr::IA32_PRED_CMD => return write_speculation(cpu, msrs, register, value),
        _ => return msrs.write_rare(register, value),
    })
}

/// Writes IA32_SPEC_CTRL, or IA32_PRED_CMD, whose only bit is IBPB.
#[cold]
fn write_speculation(cpu: &mut Cpu, msrs: &EmulatedMsrs, register: u32, value: u64) -> Option<Result<(), GeneralProtection>> {
    let is_command = register == msr::IA32_PRED_CMD;
    let guests = speculation::guests();
    let allowed = guests.control_of_guests();
    let exists = if is_command { guests.has_barrier_of_guests() } else { allowed != 0 };
    // STIBP is writable wherever the register exists, without effect on Intel's processors that lack it.
    let bits = if is_command { speculation::IBPB } else { allowed | control::STIBP };
    if !exists || value & !bits != 0 {
        return Some(Err(GeneralProtection));
    }
    if !is_command {
        let value = value & allowed;
        msrs.set_spec_ctrl(value);
        speculation::set_control(cpu, value);
    } else if value != 0 {
        speculation::barrier();
    }
    Some(Ok(()))
}
