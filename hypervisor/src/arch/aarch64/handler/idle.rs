//! Physical interrupts while a CPU has nothing to run.

use super::interrupt::{own, timer_row};
use crate::arch::aarch64::assigned::interrupts as messages;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::gic;
use crate::arch::aarch64::host::its::FIRST_LPI;
use crate::arch::aarch64::interrupts::{self, delivery};
use crate::arch::aarch64::nested;
use crate::cpu;

/// A physical interrupt may have come while this CPU had nothing to run. What is loaded, if anything, sleeps.
pub fn idle(cpu: &mut Cpu) {
    let intid = gic::acknowledge();
    if intid >= gic::FIRST_SPECIAL {
        if intid >= FIRST_LPI {
            messages::deliver(cpu, intid);
            wake_if_pending(cpu);
        }
        return;
    }
    if nested::idle_timer(cpu, intid) {
        return wake_if_pending(cpu);
    }
    gic::drop_priority(intid);
    if timer_row(intid).is_some() {
        let Some(vcpu) = cpu.vcpu else {
            // Of a vCPU that is off: its timers were stopped while this was on its way.
            gic::deactivate(intid);
            return;
        };
        let intid = interrupts::in_front(vcpu, intid);
        if !delivery::raise_timer(cpu, vcpu, intid) {
            delivery::inject_timer(vcpu, cpu.index, intid);
        }
        return wake_if_pending(cpu);
    }
    gic::deactivate(intid);
    if intid == gic::KICK || intid == gic::OWNED_KICK {
        gic::complete_acknowledge();
        cpu::take_resched(cpu);
    } else {
        // The timer's own work is done by whoever idles.
        let _ = own(cpu, intid);
        if intid == interrupts::maintenance() {
            wake_if_pending(cpu);
        }
    }
}

/// Wakes the vCPU that is loaded and sleeps, if there is one, and an interrupt for it.
fn wake_if_pending(cpu: &mut Cpu) {
    if let Some(vcpu) = cpu.vcpu
        && interrupts::is_pending(cpu, vcpu)
    {
        cpu::wake_from_idle(cpu, vcpu);
    }
}
