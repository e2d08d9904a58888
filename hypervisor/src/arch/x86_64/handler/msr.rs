//! RDMSR and WRMSR of registers that are not passed through (`vm/msr_bitmap.rs`).

use core::sync::atomic::{AtomicU64, Ordering};

use stile_apic::GeneralProtection;
use stile_board::pc;
use stile_ledger::x86_64::{self as rows, key, reason};

use super::skip_instruction;
use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::host::cpu::{Cpu, gpr};
use crate::arch::x86_64::host::instructions::{cpuid, msr};
use crate::arch::x86_64::host::timer;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::interrupts::{deadline, delivery, direct, virtual_apic, window};
use crate::arch::x86_64::nested;
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vm::stolen_time::StolenTime;
use crate::cpu;

/// Registers that read as a constant and ignore writes: guests access them without checking CPUID (the manual,
/// "Architectural MSRs").
const CONSTANT: [(u32, u64); 3] = [
    (0x17, 0),  // IA32_PLATFORM_ID
    (0x8b, 0),  // IA32_BIOS_SIGN_ID
    (0x140, 0), // MSR_MISC_FEATURES_ENABLES
];

/// MSR_PLATFORM_INFO: TSC frequency in units of 100 MHz, in bits 15:8.
fn platform_info() -> u64 {
    (timer::frequency() / 100_000_000).clamp(1, 0xff) << 8
}

/// Emulated MSRs of a vCPU ("Architectural MSRs"). Written by the CPU on which it is loaded.
pub struct Kept {
    mtrr_def_type: AtomicU64,
    mtrr_fixed: [AtomicU64; FIXED_MTRRS],
    misc_enable: AtomicU64,
    tsc_adjust: AtomicU64,
    /// Offset of the guest's counter.
    tsc_offset: AtomicU64,
    /// MSR_KVM_STEAL_TIME.
    pub stolen_time: StolenTime,
}

/// IA32_MISC_ENABLE: BTS and PEBS unavailable (read-only), fast strings enabled, as after reset.
const MISC_READ_ONLY: u64 = 1 << 11 | 1 << 12;
const MISC_RESET: u64 = 1 | MISC_READ_ONLY;
/// Writable bits without effect: fast strings, thermal control, performance counters, SpeedStep, MONITOR, CPUID
/// limit, xTPR messages, execute-disable.
const MISC_WRITABLE: u64 = 1 | 1 << 3 | 1 << 7 | 1 << 16 | 1 << 18 | 1 << 22 | 1 << 23 | 1 << 34;

/// IA32_MTRR_DEF_TYPE as firmware leaves it: enabled, write-back. There are fixed-range MTRRs only, without effect
/// and not announced by CPUID; some kernels access them all the same.
const MTRR_RESET: u64 = 1 << 11 | 6;
/// All eight ranges of a fixed-range MTRR are write-back.
const MTRR_FIXED_RESET: u64 = 0x0606_0606_0606_0606;
/// IA32_MTRRCAP.FIX.
const MTRR_HAS_FIXED: u64 = 1 << 8;
const FIXED_MTRRS: usize = 11;

/// Index of a fixed-range MTRR ("Fixed Range MTRRs").
fn fixed_mtrr(register: u32) -> Option<usize> {
    match register {
        0x250 => Some(0),
        0x258 | 0x259 => Some(register as usize - 0x257),
        0x268..=0x26f => Some(register as usize - 0x265),
        _ => None,
    }
}

/// Whether a value is valid for the register: an existing memory type, and no reserved bits ("IA32_MTRR_DEF_TYPE
/// MSR").
fn is_mtrr_def_type(value: u64) -> bool {
    const ENABLES: u64 = 0b11 << 10;
    is_memory_type(value & !ENABLES)
}

fn is_memory_type(value: u64) -> bool {
    matches!(value, 0 | 1 | 4 | 5 | 6)
}

impl Kept {
    /// Reset state.
    pub const fn new() -> Kept {
        Kept {
            mtrr_def_type: AtomicU64::new(MTRR_RESET),
            mtrr_fixed: [const { AtomicU64::new(MTRR_FIXED_RESET) }; FIXED_MTRRS],
            misc_enable: AtomicU64::new(MISC_RESET),
            tsc_adjust: AtomicU64::new(0),
            tsc_offset: AtomicU64::new(0),
            stolen_time: StolenTime::new(),
        }
    }

    /// Resets the registers.
    pub fn reset(&self) {
        self.mtrr_def_type.store(MTRR_RESET, Ordering::Relaxed);
        for register in &self.mtrr_fixed {
            register.store(MTRR_FIXED_RESET, Ordering::Relaxed);
        }
        self.misc_enable.store(MISC_RESET, Ordering::Relaxed);
        self.tsc_adjust.store(0, Ordering::Relaxed);
        self.tsc_offset.store(0, Ordering::Relaxed);
        self.stolen_time.reset();
    }

    /// Reads a register of the vCPU.
    #[cold]
    fn rare(&self, register: u32) -> Option<u64> {
        match register {
            msr::PLATFORM_INFO => Some(platform_info()),
            msr::KVM_STEAL_TIME => Some(self.stolen_time.register()),
            _ => fixed_mtrr(register).map(|fixed| self.mtrr_fixed[fixed].load(Ordering::Relaxed)),
        }
    }

    /// Writes a register of the vCPU.
    #[cold]
    fn write_rare(&self, register: u32, value: u64) -> Option<Result<(), GeneralProtection>> {
        if register == msr::PLATFORM_INFO {
            return Some(Ok(()));
        }
        let fixed = &self.mtrr_fixed[fixed_mtrr(register)?];
        let valid = value.to_le_bytes().iter().all(|&kind| is_memory_type(kind.into()));
        fixed.store(if valid { value } else { fixed.load(Ordering::Relaxed) }, Ordering::Relaxed);
        Some(if valid { Ok(()) } else { Err(GeneralProtection) })
    }

    /// Returns the offset of the guest's counter.
    #[inline(always)]
    pub fn tsc_offset(&self) -> u64 {
        self.tsc_offset.load(Ordering::Relaxed)
    }

    /// Sets back the counter while IA32_TSC_ADJUST is kept, which hides the change. The vCPU is not loaded. Returns
    /// the new [`Kept::tsc_offset`].
    pub fn hold_tsc(&self, ticks: u64) -> u64 {
        let offset = self.tsc_offset().wrapping_sub(ticks);
        self.tsc_offset.store(offset, Ordering::Relaxed);
        offset
    }

    /// IA32_TSC_ADJUST and the counter change by the same difference.
    fn move_tsc(&self, by: u64) {
        self.tsc_adjust.store(self.tsc_adjust.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        let offset = self.tsc_offset().wrapping_add(by);
        self.tsc_offset.store(offset, Ordering::Relaxed);
        vmcs::write(Field::TSC_OFFSET, offset);
    }
}

/// Converts a time of the guest's TSC to the CPU's; past times stay past.
fn deadline_of(kept: &Kept, guest: u64) -> u64 {
    let offset = kept.tsc_offset();
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
    let deadline = deadline_of(&cpu.vcpu().arch.kept, value);
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
        inject::general_protection();
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
            Ok(if deadline == 0 { 0 } else { deadline.wrapping_add(vcpu.kept.tsc_offset()) })
        }
        // `exit.S` usually answers.
        msr::IA32_APIC_BASE => Ok(cpu.apic_base),
        // Reads by the guest do not exit; this one is for an MSR list of L1's.
        msr::TSC => Ok(timer::now().wrapping_add(vcpu.kept.tsc_offset())),
        msr::TSC_ADJUST => Ok(vcpu.kept.tsc_adjust.load(Ordering::Relaxed)),
        msr::MISC_ENABLE => Ok(vcpu.kept.misc_enable.load(Ordering::Relaxed)),
        msr::DEBUGCTL => Ok(vmcs::read(Field::GUEST_DEBUGCTL)),
        // No machine-check banks.
        msr::MCG_CAP | msr::MCG_STATUS => Ok(0),
        msr::MTRR_CAP => Ok(MTRR_HAS_FIXED),
        msr::MTRR_DEF_TYPE => Ok(vcpu.kept.mtrr_def_type.load(Ordering::Relaxed)),
        pc::msr::IPI_CONTROL => return direct::control(cpu).map(Ok),
        _ => return vcpu.kept.rare(register).map(Ok),
    })
}

/// Writes one.
fn write_own(cpu: &mut Cpu, register: u32, value: u64) -> Option<Result<(), GeneralProtection>> {
    /// IA32_DEBUGCTL bits available to guests: LBR, which has no effect, and BTF.
    const LBR: u64 = 1 << 0;
    const BTF: u64 = 1 << 1;
    let vcpu = cpu.vcpu();
    let kept = &vcpu.arch.kept;
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
            let deadline = cpu.apic().tsc_deadline().wrapping_add(kept.tsc_offset());
            let old = match register {
                msr::TSC => timer::now().wrapping_add(kept.tsc_offset()),
                _ => kept.tsc_adjust.load(Ordering::Relaxed),
            };
            kept.move_tsc(value.wrapping_sub(old));
            if cpu.apic().tsc_deadline() != 0 {
                cpu.apic().set_tsc_deadline(deadline_of(kept, deadline));
            }
            deadline::update(cpu);
            Ok(())
        }
        msr::MISC_ENABLE => accept(value & !(MISC_WRITABLE | MISC_READ_ONLY) == 0).map(|()| {
            kept.misc_enable.store(value & MISC_WRITABLE | MISC_READ_ONLY, Ordering::Relaxed);
        }),
        msr::DEBUGCTL => accept(value & !(LBR | BTF) == 0).map(|()| vmcs::write(Field::GUEST_DEBUGCTL, value & BTF)),
        msr::MCG_STATUS => accept(value == 0),
        msr::MTRR_DEF_TYPE => accept(is_mtrr_def_type(value)).map(|()| kept.mtrr_def_type.store(value, Ordering::Relaxed)),
        msr::MCG_CAP | msr::MTRR_CAP => Err(GeneralProtection),
        pc::msr::IPI_CONTROL => return direct::set_control(cpu, value),
        pc::msr::IPI_COMMAND => return direct::command(cpu, value),
        msr::KVM_STEAL_TIME => accept(kept.stolen_time.write(value)).map(|()| cpu::stolen::begin(vcpu)),
        _ => return kept.write_rare(register, value),
    })
}
