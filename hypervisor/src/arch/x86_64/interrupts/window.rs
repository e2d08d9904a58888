//! Whether the loaded vCPU can be interrupted, and its exit when it can.

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::vmx;

/// In [`Field::ENTRY_INTERRUPTION`]: there is an event; an external interrupt has type 0 (the manual, "VM-Entry Controls for Event
/// Injection").
pub const VALID: u64 = 1 << 31;
/// RFLAGS.IF.
pub const IF: u64 = 1 << 9;
/// Blocking by STI and by MOV SS ("Guest Non-Register State").
const SHADOWS: u64 = 0b11;

/// Whether the loaded vCPU would take an interrupt now.
pub fn can_interrupt() -> bool {
    vmcs::read(Field::GUEST_RFLAGS) & IF != 0 && vmcs::read(Field::GUEST_INTERRUPTIBILITY) & SHADOWS == 0
}

/// Chooses whether the loaded vCPU exits as soon as it can take an interrupt.
pub fn exit_when_it_can(on: bool) {
    Cpu::note_window(on);
    let controls = vmcs::read(Field::PRIMARY_CONTROLS);
    let window = u64::from(vmx::primary::INTERRUPT_WINDOW);
    let new = if on { controls | window } else { controls & !window };
    if new != controls {
        vmcs::write(Field::PRIMARY_CONTROLS, new);
    }
}

/// Whether the loaded vCPU has interrupts on (RFLAGS.IF).
pub fn interrupts_on() -> bool {
    vmcs::read(Field::GUEST_RFLAGS) & IF != 0
}
