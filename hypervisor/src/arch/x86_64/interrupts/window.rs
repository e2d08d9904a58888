//! Interruptibility of the loaded vCPU, and interrupt-window exiting.

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::host::vmx;

/// RFLAGS.IF.
pub const IF: u64 = 1 << 9;
/// Blocking by STI and by MOV SS ("Guest Non-Register State").
const SHADOWS: u64 = 0b11;

/// Whether the loaded vCPU is interruptible now.
pub fn can_interrupt() -> bool {
    vmcs::read(Field::GUEST_RFLAGS) & IF != 0 && vmcs::read(Field::GUEST_INTERRUPTIBILITY) & SHADOWS == 0
}

/// Sets interrupt-window exiting for the loaded vCPU.
pub fn exit_when_it_can(on: bool) {
    Cpu::note_window(on);
    let controls = vmcs::read(Field::PRIMARY_CONTROLS);
    let window = u64::from(vmx::primary::INTERRUPT_WINDOW);
    let new = if on { controls | window } else { controls & !window };
    if new != controls {
        vmcs::write(Field::PRIMARY_CONTROLS, new);
    }
}

/// Whether the loaded vCPU has interrupts enabled (RFLAGS.IF).
pub fn interrupts_on() -> bool {
    vmcs::read(Field::GUEST_RFLAGS) & IF != 0
}
