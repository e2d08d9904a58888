//! HLT. A vCPU that has its CPU for itself waits in the handler. Senders and the scheduler see it as running, as one in an untrapped
//! WFI on Arm: kicks, messages and timers interrupt this CPU, whose handler injects at once.
//!
//! The intercept is needed: an exit for an interrupt of Stile's own does not show whether the guest was halted, and RIP is already
//! behind HLT. Without it the guest would continue behind HLT without an interrupt.

use stile_ledger::x86_64::{HLT_HERE, HLT_WAIT, reason};
use stile_svm::Field;
use stile_x86_decode::Kind;

use super::physical_interrupt::{handle_noted, take_kick};
use super::{length, state};
use crate::arch::x86_64::assigned::messages;
use crate::arch::x86_64::handler::instruction::{begin_wait, handle_hlt};
use crate::arch::x86_64::host::apic::{self, vector};
use crate::arch::x86_64::host::{self, timer};
use crate::arch::x86_64::interrupts::{delivery, window};
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::cpu::Outcome;

/// Handles HLT. The caller-saved registers are in the frame.
#[unsafe(no_mangle)]
pub extern "C" fn handle_svm_hlt(cpu: &mut WholeCpu) -> Outcome {
    if !length::find(cpu, Kind::Hlt) {
        return Outcome::again(reason::HLT.other());
    }
    let vmcb = state::loaded();
    // Fast path: HLT changes only RIP and the interrupt shadow, and no pending event or request would end the wait at once.
    let only_waits = vmcb.read(Field::GUEST_RFLAGS) & (state::TF | inject::RF | window::IF) == window::IF;
    if only_waits && !cpu.waiting_trapped && !cpu.vcpu().arch.events.any() && !cpu.apic().has_requests() {
        vmcb.complete(vmcb.read(Field::NEXT_RIP));
        begin_wait(cpu);
        return wait_here(cpu);
    }
    let outcome = handle_hlt(cpu);
    // With interrupts off only rare events, such as NMIs, end the wait: let the scheduler have the CPU.
    if !outcome.has(Outcome::LEAVE_BIT) || cpu.waiting_trapped || !window::interrupts_on() {
        return outcome;
    }
    // An event that the guest could not take, as in STI's shadow, sends no further kick: the scheduler's path finds it.
    if cpu.vcpu().arch.events.any() && delivery::is_pending(cpu) {
        return outcome;
    }
    wait_here(cpu)
}

/// Waits for one interrupt with the vCPU published: each sender's kick interrupts the wait, or was pending before it. If the interrupt is
/// not for the vCPU, the vCPU blocks, so that the exit is bounded like any exit with an interrupt.
fn wait_here(cpu: &mut WholeCpu) -> Outcome {
    let began = timer::now();
    host::wait_for_interrupt();
    // The wait does not count as the exit's time.
    cpu.since = cpu.since.wrapping_add(timer::now().wrapping_sub(began));
    if !take_kick(cpu) && !take_message(cpu) {
        let noted = cpu.take_noted();
        if handle_noted(cpu, noted, Outcome::again(HLT_HERE)).has(Outcome::LEAVE_BIT) {
            // The vCPU is still halted: if it is chosen again, it blocks before it is entered (`delivery::take`).
            return Outcome::leave(HLT_WAIT);
        }
    }
    if state::injects_at_interrupts() {
        cpu.loaded().context().halted = false;
        return Outcome::again(HLT_HERE);
    }
    if delivery::take(cpu) { Outcome::again(HLT_HERE) } else { Outcome::leave(HLT_WAIT) }
}

/// Injects a PCI function's message if it alone ended the wait, and the loaded vCPU is known to be its only target. Otherwise returns
/// false, without effect, and the caller must pass the noted interrupts to [`handle_noted`]. Requires that no injection is pending, and the
/// guest's interrupts are on.
#[inline(always)]
fn take_message(cpu: &mut WholeCpu) -> bool {
    const MESSAGE: u8 = 1 << (vector::MESSAGE - vector::POSTED);
    if cpu.noted() != MESSAGE || cpu.vcpu().arch.events.any() {
        return false;
    }
    let Some(number) = cpu.only_message() else { return false };
    let Some(vector) = messages::only_for(cpu, number).filter(|&vector| cpu.apic().take_at_once(vector)) else { return false };
    state::write(Field::ENTRY_INTERRUPTION, inject::VALID | u64::from(vector));
    cpu.end_noted();
    cpu.end_message(number);
    apic::end_of_interrupt();
    true
}
