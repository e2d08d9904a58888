//! vCPUs that have an EL2 of their own: L1, and the guest that it runs, L2.
//!
//! Both run at the CPU's EL1. At virtual EL2 HCR_EL2.NV and NV2 are set: accesses to EL2's registers go to EL1's registers or to the
//! page that VNCR_EL2 names, as far as FEAT_NV2 has it so; what else EL2 alone may do traps, as does ERET. EL1's registers of the
//! guest are in that page meanwhile. Where FEAT_NV2 is not to be used all of these accesses trap, and lead to the same places ([`nv_mode`]).
//! A switch between the two moves them, as little else as possible, and nothing at load or put differs from other vCPUs but the trap
//! controls. See Arm ARM, "Enhanced support for nested virtualization".

mod answer;
mod at;
mod bring;
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
mod shadow;
pub mod shadows;
pub mod state;
pub mod support;
mod switch;
mod sysreg;
mod timers;
mod tlbi;
mod traps;
mod write_trap;

use stile_nested::vncr;

use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::interrupts::{delivery, direct};
use crate::vm::Vcpu;
use state::{Nested, Regime};

/// The loaded vCPU was left, or has just been loaded: its guest may go on, or L1 may have an interrupt first.
pub fn resume(cpu: &mut Cpu) {
    delivery::pull(cpu);
    if cpu.vcpu().arch.special {
        resume_special(cpu);
    }
}

#[inline(never)]
fn resume_special(cpu: &mut Cpu) {
    match cpu.with_nested() {
        Some((cpu, nested)) => guest::resume(cpu, nested),
        None => direct::resume(cpu),
    }
}

/// WFI and WFE of the loaded vCPU are to trap, or not to.
pub fn trap_waiting(cpu: &mut Cpu, on: bool) -> bool {
    match cpu.loaded().nested() {
        Some(nested) => {
            nested.set_waiting_traps(on);
            true
        }
        None => false,
    }
}

/// The loaded vCPU's guest, if it runs one, has its second stage on this CPU.
pub fn load_second_stage(cpu: &mut Cpu) {
    let (index, vm) = (cpu.index, cpu.vcpu().vm());
    if let Some(nested) = cpu.loaded().nested()
        && nested.regime == Regime::Guest
    {
        nested.load_shadow(vm, index);
    }
}

/// A timer's interrupt came for the vCPU that is loaded here and sleeps, and is for the regime that is not on the CPU, or for its guest. L1's
/// own interface is on the CPU. False if it is another one, as for any vCPU.
pub fn idle_timer(cpu: &mut Cpu, intid: u32) -> bool {
    if cpu.vcpu.is_none() {
        return false;
    }
    match cpu.with_nested() {
        Some((cpu, nested)) => guest::idle_timer(cpu, nested, intid),
        None => false,
    }
}

/// CNTVOFF_EL2 for the EL1 virtual timer of a vCPU that is being put: its guest's, while that has the timer.
pub fn timer_offset(vcpu: &Vcpu, nested: Option<&Nested>) -> u64 {
    match nested {
        Some(nested) if nested.regime == Regime::Guest => nested.page.get(vncr::CNTVOFF_EL2),
        _ => vcpu.vm().arch.held_time(),
    }
}
