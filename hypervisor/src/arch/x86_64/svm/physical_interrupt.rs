//! Physical interrupts that end the guest's run, or its HLT.

use stile_ledger::RowId;
use stile_ledger::x86_64 as rows;
use stile_svm::Field;

use super::state;
use crate::arch::x86_64::handler::handle_interrupt;
use crate::arch::x86_64::host::apic::{self, vector};
use crate::arch::x86_64::interrupts::window;
use crate::arch::x86_64::vcpu::inject;
use crate::arch::x86_64::vcpu::loaded::WholeCpu;
use crate::cpu::{Outcome, needs_resched};

/// Handles a physical interrupt. The caller-saved registers are in the frame.
///
/// Fast path of a kick for an interrupt that the guest can take now. Other pending interrupts are taken as well, as by [`handle`].
#[unsafe(no_mangle)]
pub extern "C" fn handle_svm_intr(cpu: &mut WholeCpu) -> Outcome {
    let vmcb = state::loaded();
    let has_event = vmcb.event(Field::VECTORING) | vmcb.event(Field::ENTRY_INTERRUPTION);
    if u64::from(has_event) & inject::VALID != 0 || vmcb.read(Field::GUEST_RFLAGS) & window::IF == 0 || vmcb.has_shadow() {
        return handle(cpu, rows::INTERRUPT_SPURIOUS);
    }
    state::take_interrupts();
    if !take_kick(cpu) {
        return handle(cpu, rows::INTERRUPT_SPURIOUS);
    }
    state::take_interrupts();
    if cpu.noted() == 0 { Outcome::again(rows::INTERRUPT_KICK) } else { handle(cpu, rows::INTERRUPT_KICK) }
}

/// Handles the noted interrupts if they are only a kick for a single posted interrupt, which the guest can take now. Otherwise returns
/// false: [`handle_noted`] must handle them.
#[inline(always)]
pub fn take_kick(cpu: &mut WholeCpu) -> bool {
    const KICK: u8 = 1 << (vector::KICK - vector::POSTED);
    if cpu.noted() != KICK || needs_resched(cpu) || cpu.vcpu().arch.events.any() {
        return false;
    }
    let Some(posted) = cpu.apic().acknowledge_posted() else { return false };
    state::write(Field::ENTRY_INTERRUPTION, inject::VALID | u64::from(posted));
    cpu.end_noted();
    apic::end_of_interrupt();
    true
}

/// Handles physical interrupts. They are still pending: taken, each sets a bit in the CPU's block. An NMI sets none, and would make the
/// guest exit for ever otherwise. `other`: the row if there is none.
///
/// EXITINTINFO may have an event whose delivery they have interrupted: an injected one ("Intercepts During IDT Interrupt Delivery"). QEMU
/// delivers such events before interrupts.
///
/// Handles all pending vectors, each once. A vector in service holds back lower ones, and the timer's is the highest: with slices that
/// are over before the guest is entered, the console and kicks would otherwise be held back for ever.
#[inline(never)]
pub fn handle(cpu: &mut WholeCpu, other: RowId) -> Outcome {
    inject::deliver_again();
    let mut outcome = Outcome::again(other);
    let mut handled = 0;
    loop {
        state::take_interrupts();
        let noted = cpu.take_noted();
        outcome = handle_noted(cpu, noted, outcome);
        // A vector that is pending again waits for the next exit, which bounds the loop.
        if noted == 0 || noted & handled != 0 {
            return outcome;
        }
        handled |= noted;
    }
}

/// Handles noted interrupts. Returns the outcome of the last one that leaves the vCPU, or else of the last one. `outcome` is that of the
/// interrupts handled before.
#[inline(always)]
pub fn handle_noted(cpu: &mut WholeCpu, noted: u8, mut outcome: Outcome) -> Outcome {
    let mut left = noted;
    // The highest one is in service, and ended first.
    while let Some(number) = left.checked_ilog2() {
        left &= !(1 << number);
        let next = handle_interrupt(cpu, vector::POSTED + number as u8);
        if next.has(Outcome::LEAVE_BIT) || !outcome.has(Outcome::LEAVE_BIT) {
            outcome = next;
        }
    }
    outcome
}
