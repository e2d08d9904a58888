//! RDMSR and WRMSR of registers that are not passed to the guest (vm.rs has those).

use core::sync::atomic::{AtomicU64, Ordering};

use stile_apic::GeneralProtection;
use stile_ledger::x86_64::{key, reason};

use super::{inject, skip_instruction};
use crate::arch::x86_64::cpu::{Cpu, gpr};
use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::instructions::{cpuid, msr};
use crate::arch::x86_64::vmcs::{self, Field};
use crate::arch::x86_64::{interrupts, timer, virtual_apic};

/// Registers that read as a constant and take any write, which has no effect: guests look at them without asking CPUID whether they
/// are there (the manual, "Architectural MSRs").
const CONSTANT: [(u32, u64); 4] = [
    (0x17, 0),  // IA32_PLATFORM_ID
    (0x8b, 0),  // IA32_BIOS_SIGN_ID
    (0xce, 0),  // MSR_PLATFORM_INFO
    (0x140, 0), // MSR_MISC_FEATURES_ENABLES
];

/// The MSRs of one vCPU that keep what is written ("Architectural MSRs"). Written by the CPU that it is loaded on.
pub struct Kept {
    misc_enable: AtomicU64,
    tsc_adjust: AtomicU64,
    /// What is added to the counter for the guest.
    tsc_offset: AtomicU64,
}

/// IA32_MISC_ENABLE: no BTS and no PEBS, which can't be written; and fast strings, as after reset.
const MISC_READ_ONLY: u64 = 1 << 11 | 1 << 12;
const MISC_RESET: u64 = 1 | MISC_READ_ONLY;
/// Fast strings, thermal control, performance counters, SpeedStep, MONITOR, the limit of CPUID, xTPR messages, execute-disable. They change
/// nothing here.
const MISC_WRITABLE: u64 = 1 | 1 << 3 | 1 << 7 | 1 << 16 | 1 << 18 | 1 << 22 | 1 << 23 | 1 << 34;

impl Kept {
    /// As after reset.
    pub const fn new() -> Kept {
        Kept { misc_enable: AtomicU64::new(MISC_RESET), tsc_adjust: AtomicU64::new(0), tsc_offset: AtomicU64::new(0) }
    }

    /// Back to that state.
    pub fn reset(&self) {
        self.misc_enable.store(MISC_RESET, Ordering::Relaxed);
        self.tsc_adjust.store(0, Ordering::Relaxed);
        self.tsc_offset.store(0, Ordering::Relaxed);
    }

    /// What is added to the counter for the guest.
    #[inline(always)]
    pub fn tsc_offset(&self) -> u64 {
        self.tsc_offset.load(Ordering::Relaxed)
    }

    /// IA32_TSC_ADJUST follows the counter, and the counter follows it, by the same difference.
    fn move_tsc(&self, by: u64) {
        self.tsc_adjust.store(self.tsc_adjust.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        let offset = self.tsc_offset().wrapping_add(by);
        self.tsc_offset.store(offset, Ordering::Relaxed);
        vmcs::write(Field::TSC_OFFSET, offset);
    }
}

/// What the guest means by a time of its own counter, in ticks of the CPU's: what is past is past there, too.
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
    let kept = &cpu.vcpu().arch.kept;
    Some(match register {
        _ if X2APIC.contains(&register) => cpu.apic().read_msr(register, timer::now()),
        msr::IA32_TSC_DEADLINE => {
            let deadline = cpu.apic().tsc_deadline();
            Ok(if deadline == 0 { 0 } else { deadline.wrapping_add(kept.tsc_offset()) })
        }
        // Mostly answered in `exit.S`.
        msr::IA32_APIC_BASE => Ok(cpu.apic_base),
        msr::TSC_ADJUST => Ok(kept.tsc_adjust.load(Ordering::Relaxed)),
        msr::MISC_ENABLE => Ok(kept.misc_enable.load(Ordering::Relaxed)),
        msr::DEBUGCTL => Ok(vmcs::read(Field::GUEST_DEBUGCTL)),
        // There are no banks of errors, and no machine check.
        msr::MCG_CAP | msr::MCG_STATUS => Ok(0),
        _ => return None,
    })
}

/// Writes one.
fn write_own(cpu: &mut Cpu, register: u32, value: u64) -> Option<Result<(), GeneralProtection>> {
    /// Bits of IA32_DEBUGCTL that there are for guests: LBR, which records nothing, and BTF.
    const LBR: u64 = 1 << 0;
    const BTF: u64 = 1 << 1;
    let kept = &cpu.vcpu().arch.kept;
    let accept = |valid: bool| if valid { Ok(()) } else { Err(GeneralProtection) };
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
            apic.set_tsc_deadline(deadline_of(kept, value));
            interrupts::set_deadline(cpu);
            Ok(())
        }
        msr::TSC | msr::TSC_ADJUST => {
            let deadline = apic.tsc_deadline().wrapping_add(kept.tsc_offset());
            let old = match register {
                msr::TSC => timer::now().wrapping_add(kept.tsc_offset()),
                _ => kept.tsc_adjust.load(Ordering::Relaxed),
            };
            kept.move_tsc(value.wrapping_sub(old));
            if apic.tsc_deadline() != 0 {
                apic.set_tsc_deadline(deadline_of(kept, deadline));
                interrupts::set_deadline(cpu);
            }
            Ok(())
        }
        msr::MISC_ENABLE => accept(value & !(MISC_WRITABLE | MISC_READ_ONLY) == 0).map(|()| {
            kept.misc_enable.store(value & MISC_WRITABLE | MISC_READ_ONLY, Ordering::Relaxed);
        }),
        msr::DEBUGCTL => accept(value & !(LBR | BTF) == 0).map(|()| vmcs::write(Field::GUEST_DEBUGCTL, value & BTF)),
        msr::MCG_STATUS => accept(value == 0),
        msr::MCG_CAP => Err(GeneralProtection),
        _ => return None,
    })
}
