//! vCPUs with an EL2: L1, and the guest that it runs, L2.
//!
//! Both run at the CPU's EL1. At virtual EL2 HCR_EL2.NV and NV2 are set: FEAT_NV2 redirects accesses to EL2's
//! registers to EL1's registers or to the VNCR_EL2 page; other EL2 operations trap, as does ERET. The page holds the
//! guest's EL1 registers meanwhile. Without FEAT_NV2 all these accesses trap, and use the same homes ([`nv_mode`]). A
//! switch between the two moves as few registers as possible; load and put differ from other vCPUs' only in the trap
//! controls. See Arm ARM, "Enhanced support for nested virtualization".

mod answer;
mod at;
mod authenticate;
mod controls;
mod debug;
mod e2h;
mod eret;
mod exception;
mod exits;
pub mod gic;
mod guest;
mod home;
mod lazy_traps;
mod load;
mod mode;
pub mod nv_mode;
pub mod regime;
mod registers;
mod restore;
mod serror;
mod shadow;
pub mod shadows;
pub mod state;
pub mod support;
mod switch;
mod sysreg;
mod timer_interrupts;
mod timers;
mod tlbi;
mod traps;
mod write_trap;

use stile_nested_arm::vncr;

use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::interrupts::{delivery, direct};
use crate::arch::aarch64::vcpu::loaded::WholeCpu;
use crate::vm::Vcpu;
use state::{Nested, Regime};
pub use timer_interrupts::idle_timer;

/// Resumes the loaded vCPU after it was left or loaded: its guest continues, unless L1 has an interrupt to take
/// first.
#[inline(always)]
pub fn resume(cpu: &mut Cpu) {
    delivery::pull(cpu);
    if cpu.vcpu().arch.is_special() {
        resume_special(cpu);
    }
}

#[inline(never)]
fn resume_special(cpu: &mut Cpu) {
    // SAFETY: the handler has returned, or the vCPU was just loaded: nothing has a reference to its EL2.
    match unsafe { WholeCpu::of(cpu) }.split() {
        (cpu, Some(nested)) => guest::resume(cpu, nested),
        (cpu, None) => direct::resume(cpu),
    }
}

/// Sets whether WFI and WFE of the loaded vCPU trap.
pub fn trap_waiting(cpu: &mut Cpu, on: bool) -> bool {
    // SAFETY: the scheduler sets this between exits, when no handler has a reference to the vCPU's EL2.
    match unsafe { WholeCpu::of(cpu) }.split().1 {
        Some(nested) => {
            nested.set_waiting_traps(on);
            true
        }
        None => false,
    }
}

/// Loads the second stage of the loaded vCPU's guest, if it runs one.
pub fn load_second_stage(cpu: &mut Cpu) {
    let (index, vm) = (cpu.index, cpu.vcpu().vm());
    // SAFETY: the vCPU is being loaded: no handler runs, and so none has a reference to its EL2.
    if let Some(nested) = unsafe { WholeCpu::of(cpu) }.split().1
        && nested.regime == Regime::Guest
    {
        nested.load_shadow(vm, index);
    }
}

/// CNTVOFF_EL2 for the EL1 virtual timer of a vCPU that is being put: its guest's, while that has the timer.
pub fn timer_offset(vcpu: &Vcpu, nested: Option<&Nested>) -> u64 {
    match nested {
        Some(nested) if nested.regime == Regime::Guest => nested.page.get(vncr::CNTVOFF_EL2),
        _ => vcpu.vm().arch.held_time(),
    }
}
