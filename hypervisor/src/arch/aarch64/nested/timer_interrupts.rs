//! Interrupts of the timers of a vCPU with an EL2.

use stile_board::intid;
use stile_ledger::aarch64 as rows;

use super::gic as guest_gic;
use super::state::{Nested, Regime};
use super::timers;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::vcpu::loaded::WholeCpu;
use crate::cpu::Outcome;

/// Handles an acknowledged CNTHV interrupt. L1's own interface is loaded.
#[inline(always)]
pub fn stand_in(cpu: &mut Cpu, nested: &mut Nested) -> Outcome {
    gic::drop_priority(timers::STAND_IN);
    gic::deactivate(timers::STAND_IN);
    timers::stand_in_expired(cpu, nested);
    Outcome::again(rows::IRQ_STAND_IN)
}

/// Handles an acknowledged interrupt of one of L2's timers, which are in the CPU. L1's own interface is loaded.
#[inline(always)]
pub fn guest_timer(cpu: &mut Cpu, nested: &mut Nested, intid: u32) -> Outcome {
    gic::drop_priority(intid);
    guest_gic::guest_timer_expired(cpu, cpu.vcpu(), nested, intid);
    Outcome::again(if intid == intid::TIMER_EL1_VIRTUAL { rows::IRQ_VIRTUAL_TIMER } else { rows::IRQ_PHYSICAL_TIMER })
}

/// Handles a timer interrupt of the loaded, sleeping vCPU that belongs to the regime that is not in the CPU, or to
/// its guest. L1's own interface is loaded. Returns false for other interrupts.
pub fn idle_timer(cpu: &mut Cpu, intid: u32) -> bool {
    if cpu.vcpu.is_none() {
        return false;
    }
    // SAFETY: the CPU is idle: no handler runs, and so none has a reference to the vCPU's EL2.
    let (cpu, Some(nested)) = unsafe { WholeCpu::of(cpu) }.split() else { return false };
    match (intid, nested.regime) {
        (timers::STAND_IN, _) => stand_in(cpu, nested),
        (intid::TIMER_EL1_VIRTUAL | intid::TIMER_EL1_PHYSICAL, Regime::Guest) => guest_timer(cpu, nested, intid),
        _ => return false,
    };
    true
}
