//! Emulated MSRs of a vCPU ("Architectural MSRs").

use core::sync::atomic::{AtomicU64, Ordering};

use stile_apic::GeneralProtection;
use stile_snapshot::x86_64::{self as saved, EmulatedMsrs as Saved};
use stile_speculation::x86_64::leaf_7;

use crate::arch::x86_64::host::instructions::msr;
use crate::arch::x86_64::host::{speculation, timer};
use crate::arch::x86_64::virt::hyper_v::AssistPage;
use crate::arch::x86_64::virt::kvm_clock::KvmClock;
use crate::arch::x86_64::virt::paravirtual_eoi::ParavirtualEoi;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::arch::x86_64::vm::stolen_time::StolenTime;

/// MSR_PLATFORM_INFO: TSC frequency in units of 100 MHz, in bits 15:8.
fn platform_info() -> u64 {
    (timer::frequency() / 100_000_000).clamp(1, 0xff) << 8
}

/// Emulated MSRs. Written by the CPU on which the vCPU is loaded.
pub struct EmulatedMsrs {
    pub mtrr_def_type: AtomicU64,
    mtrr_fixed: [AtomicU64; FIXED_MTRRS],
    pub misc_enable: AtomicU64,
    pub tsc_adjust: AtomicU64,
    /// Offset of the guest's counter.
    tsc_offset: AtomicU64,
    /// IA32_SPEC_CTRL.
    spec_ctrl: AtomicU64,
    /// MSR_KVM_STEAL_TIME.
    pub stolen_time: StolenTime,
    /// MSR_KVM_SYSTEM_TIME_NEW.
    pub kvm_clock: KvmClock,
    /// MSR_KVM_PV_EOI_EN.
    pub eoi: ParavirtualEoi,
    /// HV_X64_MSR_VP_ASSIST_PAGE.
    pub assist: AssistPage,
}

/// IA32_MISC_ENABLE: BTS and PEBS unavailable (read-only), fast strings enabled, as after reset.
pub const MISC_READ_ONLY: u64 = 1 << 11 | 1 << 12;
const MISC_RESET: u64 = 1 | MISC_READ_ONLY;
/// Writable bits without effect: fast strings, thermal control, performance counters, SpeedStep, MONITOR, CPUID
/// limit, xTPR messages, execute-disable.
pub const MISC_WRITABLE: u64 = 1 | 1 << 3 | 1 << 7 | 1 << 16 | 1 << 18 | 1 << 22 | 1 << 23 | 1 << 34;

/// IA32_MTRR_DEF_TYPE as firmware leaves it: enabled, write-back. There are fixed-range MTRRs only, without effect
/// and not announced by CPUID; some kernels access them all the same.
const MTRR_RESET: u64 = 1 << 11 | 6;
/// All eight ranges of a fixed-range MTRR are write-back.
const MTRR_FIXED_RESET: u64 = 0x0606_0606_0606_0606;
/// IA32_MTRRCAP.FIX.
pub const MTRR_HAS_FIXED: u64 = 1 << 8;
const FIXED_MTRRS: usize = saved::FIXED_MTRRS;

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
pub fn is_mtrr_def_type(value: u64) -> bool {
    const ENABLES: u64 = 0b11 << 10;
    is_memory_type(value & !ENABLES)
}

/// Whether guests see a bit of CPUID leaf 7, EDX.
pub fn has(bit: u32) -> bool {
    speculation::guests().leaf_7_of_guests() & bit != 0
}

/// Whether a value is a memory type of MTRRs.
pub fn is_memory_type(value: u64) -> bool {
    matches!(value, 0 | 1 | 4 | 5 | 6)
}

impl EmulatedMsrs {
    /// Reset state.
    pub const fn new() -> EmulatedMsrs {
        EmulatedMsrs {
            mtrr_def_type: AtomicU64::new(MTRR_RESET),
            mtrr_fixed: [const { AtomicU64::new(MTRR_FIXED_RESET) }; FIXED_MTRRS],
            misc_enable: AtomicU64::new(MISC_RESET),
            tsc_adjust: AtomicU64::new(0),
            tsc_offset: AtomicU64::new(0),
            spec_ctrl: AtomicU64::new(0),
            stolen_time: StolenTime::new(),
            kvm_clock: KvmClock::new(),
            eoi: ParavirtualEoi::new(),
            assist: AssistPage::new(),
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
        self.spec_ctrl.store(0, Ordering::Relaxed);
        self.stolen_time.reset();
        self.kvm_clock.reset();
        self.eoi.reset();
        self.assist.reset();
    }

    /// Exports the registers.
    pub fn save(&self) -> Saved {
        Saved {
            mtrr_def_type: self.mtrr_def_type.load(Ordering::Relaxed),
            mtrr_fixed: self.mtrr_fixed.each_ref().map(|register| register.load(Ordering::Relaxed)),
            misc_enable: self.misc_enable.load(Ordering::Relaxed),
            tsc_adjust: self.tsc_adjust.load(Ordering::Relaxed),
            spec_ctrl: self.spec_ctrl(),
            steal_time: self.stolen_time.register(),
            system_time: self.kvm_clock.register(),
            eoi: self.eoi.register(),
        }
    }

    /// Imports registers, except those that do not take their values. `tsc_offset`: of the guest's counter.
    pub fn restore(&self, from: &Saved, tsc_offset: u64) {
        self.reset();
        if is_mtrr_def_type(from.mtrr_def_type) {
            self.mtrr_def_type.store(from.mtrr_def_type, Ordering::Relaxed);
        }
        for (register, &value) in self.mtrr_fixed.iter().zip(&from.mtrr_fixed) {
            if value.to_le_bytes().iter().all(|&kind| is_memory_type(kind.into())) {
                register.store(value, Ordering::Relaxed);
            }
        }
        self.misc_enable.store(from.misc_enable & MISC_WRITABLE | MISC_READ_ONLY, Ordering::Relaxed);
        self.tsc_adjust.store(from.tsc_adjust, Ordering::Relaxed);
        self.tsc_offset.store(tsc_offset, Ordering::Relaxed);
        self.set_spec_ctrl(from.spec_ctrl & speculation::guests().control_of_guests());
        self.stolen_time.restore(from.steal_time);
        self.kvm_clock.restore(from.system_time);
        self.eoi.restore(from.eoi);
    }

    /// Reads a register of the vCPU.
    #[cold]
    pub fn rare(&self, register: u32) -> Option<u64> {
        match register {
            msr::PLATFORM_INFO => Some(platform_info()),
            msr::KVM_STEAL_TIME => Some(self.stolen_time.register()),
            msr::IA32_SPEC_CTRL if speculation::guests().control_of_guests() != 0 => Some(self.spec_ctrl()),
            msr::IA32_ARCH_CAPABILITIES if has(leaf_7::ARCH_CAPABILITIES) => Some(speculation::guests().capabilities_of_guests()),
            _ => fixed_mtrr(register).map(|fixed| self.mtrr_fixed[fixed].load(Ordering::Relaxed)),
        }
    }

    /// Writes a register of the vCPU.
    #[cold]
    pub fn write_rare(&self, register: u32, value: u64) -> Option<Result<(), GeneralProtection>> {
        if register == msr::PLATFORM_INFO {
            return Some(Ok(()));
        }
        let fixed = &self.mtrr_fixed[fixed_mtrr(register)?];
        let valid = value.to_le_bytes().iter().all(|&kind| is_memory_type(kind.into()));
        fixed.store(if valid { value } else { fixed.load(Ordering::Relaxed) }, Ordering::Relaxed);
        Some(if valid { Ok(()) } else { Err(GeneralProtection) })
    }

    /// IA32_SPEC_CTRL of the guest.
    pub fn spec_ctrl(&self) -> u64 {
        self.spec_ctrl.load(Ordering::Relaxed)
    }

    /// Sets what [`EmulatedMsrs::spec_ctrl`] returns; the CPU's register is the caller's to write.
    pub fn set_spec_ctrl(&self, value: u64) {
        self.spec_ctrl.store(value, Ordering::Relaxed);
    }

    /// Returns the offset of the guest's counter.
    #[inline(always)]
    pub fn tsc_offset(&self) -> u64 {
        self.tsc_offset.load(Ordering::Relaxed)
    }

    /// Sets back the counter while IA32_TSC_ADJUST stays, which hides the change. The vCPU is not loaded. Returns
    /// the new [`EmulatedMsrs::tsc_offset`].
    pub fn hold_tsc(&self, ticks: u64) -> u64 {
        let offset = self.tsc_offset().wrapping_sub(ticks);
        self.tsc_offset.store(offset, Ordering::Relaxed);
        offset
    }

    /// IA32_TSC_ADJUST and the counter change by the same difference.
    pub fn move_tsc(&self, by: u64) {
        self.tsc_adjust.store(self.tsc_adjust.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        let offset = self.tsc_offset().wrapping_add(by);
        self.tsc_offset.store(offset, Ordering::Relaxed);
        state::write(Field::TSC_OFFSET, offset);
    }
}
