//! Physical interrupts that are taken from a guest.

use stile_board::intid;
use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;
use stile_vgic::Requests;

use crate::arch::aarch64::assigned::{faults, interrupts as messages};
use crate::arch::aarch64::host::cpu::Cpu;
use crate::arch::aarch64::host::its::FIRST_LPI;
use crate::arch::aarch64::host::{gic, gicv2, sgi};
use crate::arch::aarch64::interrupts::{self, delivery, interface, trusted};
use crate::cpu::{self, Leave, Outcome};

/// Handles a physical IRQ that was taken from a guest.
#[unsafe(no_mangle)]
extern "C" fn handle_irq(cpu: &mut Cpu, _esr: u64) -> Outcome {
    let intid = gic::acknowledge();
    // EL1's timers first, as they are frequent: the guest deactivates them. One comparison separates the virtual timer from
    // lower INTIDs such as the kick.
    if intid == intid::TIMER_EL1_VIRTUAL {
        return raise_timer(cpu, intid, rows::IRQ_VIRTUAL_TIMER);
    }
    if intid > intid::TIMER_EL1_VIRTUAL && intid == intid::TIMER_EL1_PHYSICAL {
        return raise_timer(cpu, intid, rows::IRQ_PHYSICAL_TIMER);
    }
    other_irq::<true>(cpu, intid)
}

/// Handles the interrupt of one of EL1's timers, which is the loaded vCPU's.
#[inline(always)]
fn raise_timer(cpu: &mut Cpu, intid: u32, row: RowId) -> Outcome {
    gic::drop_priority(intid);
    if delivery::raise_timer(cpu, cpu.vcpu(), intid) {
        return Outcome::again(row);
    }
    inject_timer(cpu, intid, row)
}

/// Handles an acknowledged physical interrupt other than EL1's timers. `MESSAGES`: the vCPU's VM may have PCI functions,
/// whose MSIs (LPIs) are frequent.
#[inline(always)]
pub fn other_irq<const MESSAGES: bool>(cpu: &mut Cpu, intid: u32) -> Outcome {
    if intid == sgi::KICK {
        gic::drop_priority(intid);
        gic::deactivate(intid);
        gic::complete_acknowledge();
        if cpu::needs_resched(cpu) {
            return resched(cpu);
        }
        let requests = delivery::take_requests(cpu);
        return if requests.is_empty() { Outcome::again(rows::IRQ_KICK) } else { accept(cpu, requests) };
    }
    if MESSAGES && intid >= FIRST_LPI {
        return deliver_message(cpu, intid);
    }
    handle_own(cpu, intid)
}

// Tail calls from the hot path above, which then saves no registers for them.

#[cold]
#[inline(never)]
fn inject_timer(cpu: &mut Cpu, intid: u32, row: RowId) -> Outcome {
    delivery::inject_timer(cpu.vcpu(), cpu.index, intid);
    Outcome::again(row)
}

#[cold]
#[inline(never)]
fn deliver_message(cpu: &mut Cpu, lpi: u32) -> Outcome {
    messages::deliver(cpu, lpi);
    Outcome::again(rows::IRQ_DEVICE)
}

#[cold]
#[inline(never)]
fn resched(cpu: &mut Cpu) -> Outcome {
    cpu.leave = Leave::Resched;
    Outcome::leave(rows::IRQ_KICK)
}

#[inline(never)]
fn accept(cpu: &mut Cpu, requests: Requests) -> Outcome {
    delivery::accept(cpu.vcpu(), cpu.index, requests);
    Outcome::again(rows::IRQ_KICK)
}

/// The ledger's row of an interrupt that is one of EL1's timers.
#[inline(always)]
pub(super) fn timer_row(intid: u32) -> Option<RowId> {
    match intid {
        intid::TIMER_EL1_VIRTUAL => Some(rows::IRQ_VIRTUAL_TIMER),
        intid::TIMER_EL1_PHYSICAL => Some(rows::IRQ_PHYSICAL_TIMER),
        _ => None,
    }
}

#[cold]
#[inline(never)]
fn handle_own(cpu: &mut Cpu, intid: u32) -> Outcome {
    if intid >= gic::FIRST_SPECIAL {
        return if intid >= FIRST_LPI { deliver_message(cpu, intid) } else { Outcome::again(rows::IRQ_SPURIOUS) };
    }
    gic::drop_priority(intid);
    gic::deactivate(intid);
    if intid < sgi::KICK {
        trusted::arrived(cpu, intid);
        return Outcome::again(rows::IRQ_KICK);
    }
    let (row, timer) = own(cpu, intid);
    if timer {
        cpu.leave = Leave::Timer;
        return Outcome::leave(row);
    }
    Outcome::again(row)
}

/// Handles Stile's own interrupts except kicks. Returns the ledger's row, and whether it was the timer.
pub(super) fn own(cpu: &mut Cpu, intid: u32) -> (RowId, bool) {
    if intid == interrupts::timer() {
        (rows::IRQ_SLICE, true)
    } else if intid == interrupts::maintenance() {
        // With GICv2, ends of linked interrupts also cause it: they may be the only cause.
        if let Some(vcpu) = cpu.vcpu
            && (!gicv2::is_present() || interface::end_linked())
        {
            delivery::maintain(vcpu, cpu.index);
        }
        (rows::IRQ_MAINTENANCE, false)
    } else if Some(intid) == interrupts::uart() {
        crate::operator::console_interrupt();
        (rows::IRQ_UART, false)
    } else if Some(intid) == interrupts::smmu() {
        faults::take();
        (rows::IRQ_DEVICE, false)
    } else {
        (rows::IRQ_DEVICE, false)
    }
}
