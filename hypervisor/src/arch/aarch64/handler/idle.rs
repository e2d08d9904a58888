//! Physical interrupts of an idle CPU.

use super::interrupt::{own, timer_row};
use crate::arch::aarch64::assigned::interrupts as messages;
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::its::FIRST_LPI;
use crate::arch::aarch64::host::{gic, sgi};
use crate::arch::aarch64::interrupts::{self, delivery, trusted};
use crate::arch::aarch64::nested;
use crate::cpu;

/// Handles physical interrupts of an idle CPU. The loaded vCPU, if any, sleeps.
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
            // From a vCPU that is off, whose timers were stopped after the interrupt had been signalled.
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
    if intid == sgi::KICK {
        gic::complete_acknowledge();
        cpu::take_resched(cpu);
    } else if intid < sgi::KICK {
        trusted::arrived(cpu, intid);
    } else {
        // If it is the timer: the idle loop does its work after this.
        let _ = own(cpu, intid);
        if intid == interrupts::maintenance() {
            wake_if_pending(cpu);
        }
    }
}

/// Wakes the loaded vCPU if it sleeps and has a pending interrupt.
fn wake_if_pending(cpu: &mut Cpu) {
    if let Some(vcpu) = cpu.vcpu
        && interrupts::is_pending(cpu, vcpu)
    {
        cpu::wake_from_idle(cpu, vcpu);
    }
}
