//! Interrupt and NMI windows. These exits follow event injection and take priority over external interrupts (the
//! manual, "Interrupt-Window Exiting"): without a check by Stile, a vCPU whose window opens again after each injection
//! would keep its CPU.

use stile_ledger::RowId;
use stile_ledger::x86_64::reason;

use super::exception;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::{delivery, window};
use crate::arch::x86_64::vcpu::inject::VALID;
use crate::arch::x86_64::virt::state::{self, Field};
use crate::cpu::Outcome;

/// NMI window: the guest can take a pending NMI.
pub fn nmi(cpu: &mut Cpu) -> Outcome {
    state::end_nmi_window();
    deliver(cpu, reason::NMI_WINDOW.other())
}

/// The instruction behind STI, which blocked an NMI, is over.
pub fn stepped(cpu: &mut Cpu) -> Outcome {
    state::end_step_of_nmi();
    deliver(cpu, reason::NMI_WINDOW.other())
}

/// Interrupt window: the guest can take a pending interrupt.
pub fn interrupt(cpu: &mut Cpu) -> Outcome {
    window::exit_when_it_can(false);
    deliver(cpu, reason::WINDOW.other())
}

fn deliver(cpu: &mut Cpu, row: RowId) -> Outcome {
    delivery::pull(cpu);
    if state::read(Field::ENTRY_INTERRUPTION) & VALID != 0 {
        return exception::resume_or_leave(cpu, row);
    }
    Outcome::again(row)
}
