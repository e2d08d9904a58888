//! Exits in the gate view ([`crate::arch::x86_64::vmx::gate`]). Each leads back to the guest's own view.

use stile_gate::page::{self, ENTRY, JUMP, LEAVE, RETURN, SEND, SENT, SLOT, VMFUNC};
use stile_ledger::x86_64::{key, reason};

use super::intercepted;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::delivery;
use crate::arch::x86_64::vcpu::cr0;
use crate::arch::x86_64::vcpu::inject::{self, EXTERNAL, NMI, TYPE};
use crate::arch::x86_64::vmx::basic;
use crate::arch::x86_64::vmx::direct::{self, Slot};
use crate::arch::x86_64::vmx::vmcs::{self, Field};
use crate::cpu::Outcome;

/// Leaves the view. Returns whether the exit is one of the gate's own, without a cause in the guest's view, for
/// [`handle_gate`]; else it is handled as any other.
#[unsafe(no_mangle)]
extern "C" fn leave_gate(cpu: &mut Cpu) -> bool {
    vmcs::write(Field::EPT_POINTER, cpu.virt.view);
    if !interrupts_guest() {
        return true;
    }
    if vmcs::read(Field::EXIT_REASON) & 0xffff == basic::EXCEPTION && intercepted::is_debug(vmcs::read(Field::EXIT_INTERRUPTION)) {
        complete(cpu);
    }
    restart();
    false
}

/// Sends the notification for a sender that a debug exception interrupts before its store. Restarted, the sender would be interrupted
/// again without end.
#[cold]
fn complete(cpu: &mut Cpu) {
    let rip = vmcs::read(Field::GUEST_RIP);
    let slot = rip & !(SLOT as u64 - 1);
    if may_send() && matches!((rip - slot) as usize, SEND | ENTRY | JUMP) && direct::notify_slot(cpu, slot as usize % page::SIZE / SLOT) {
        // It may be the sender itself.
        delivery::pull(cpu);
        vmcs::write(Field::GUEST_RIP, slot + RETURN as u64);
    }
}

/// Whether the exit is an event between two instructions: from outside, or a debug exception.
fn interrupts_guest() -> bool {
    const INTERRUPT: u64 = basic::EXTERNAL_INTERRUPT as u64;
    match vmcs::read(Field::EXIT_REASON) & 0xffff {
        INTERRUPT | basic::INIT | basic::INTERRUPT_WINDOW | basic::NMI_WINDOW | basic::MONITOR_TRAP | basic::PREEMPTION_TIMER => true,
        basic::EXCEPTION => {
            let event = vmcs::read(Field::EXIT_INTERRUPTION);
            event & TYPE == NMI || intercepted::is_debug(event)
        }
        _ => false,
    }
}

/// Makes an interrupted sender restart at its VMFUNC, or return if it has sent: the APIC's destination register does not
/// survive the exit.
fn restart() {
    let rip = vmcs::read(Field::GUEST_RIP);
    let slot = rip & !(SLOT as u64 - 1);
    let to = match (rip - slot) as usize {
        _ if !may_send() => return,
        SEND | ENTRY | JUMP => ENTRY - VMFUNC,
        SENT | LEAVE => RETURN,
        // No place where the page's own code can be.
        _ => return,
    };
    vmcs::write(Field::GUEST_RIP, slot + to as u64);
}

/// Whether the guest's code is such that the gate's can be executed: 64-bit, at privilege level 0.
fn may_send() -> bool {
    cr0::runs_64_bit_code() && vmcs::read(Field::GUEST_SS_RIGHTS) >> 5 & 0b11 == 0
}

/// Handles an exit that an instruction in the gate caused: an access that the view does not allow, or an undefined instruction.
/// The guest continues at the same address in its own view, unless it has entered a closed slot: that is a
/// request to notify its vCPU, or if it is open by now, to enter it again. An interrupt whose delivery failed becomes
/// pending again.
#[unsafe(no_mangle)]
extern "C" fn handle_gate(cpu: &mut Cpu) -> Outcome {
    if inject::was_delivering() {
        let event = vmcs::read(Field::VECTORING);
        // An exception is dropped: the instruction that caused it is not there in the guest's view.
        delivery::put_back(cpu, event);
        if event & TYPE == EXTERNAL {
            restart();
            return Outcome::again(cpu.loaded().ledger().row_for(reason::VMX, key::GATE_DELIVERY));
        }
    }
    let rip = vmcs::read(Field::GUEST_RIP);
    let (slot, into) = (rip as usize % page::SIZE / SLOT, rip as usize % SLOT);
    if into == ENTRY && may_send() {
        match direct::notify_by_exit(cpu, slot) {
            Slot::Notified => {
                // It may be the sender itself.
                delivery::pull(cpu);
                vmcs::write(Field::GUEST_RIP, rip - (ENTRY - RETURN) as u64);
            }
            Slot::Open => restart(),
            Slot::Absent => {}
        }
    }
    Outcome::again(reason::VMX.other())
}
