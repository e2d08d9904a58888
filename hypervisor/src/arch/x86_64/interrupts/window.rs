//! Interruptibility of the loaded vCPU, and interrupt-window exiting.

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::virt::state::{self, Field};

/// RFLAGS.IF.
pub const IF: u64 = 1 << 9;
/// Blocking by STI and by MOV SS ("Guest Non-Register State").
const SHADOWS: u64 = 0b11;

/// Whether the loaded vCPU is interruptible now.
pub fn can_interrupt() -> bool {
    state::read(Field::GUEST_RFLAGS) & IF != 0 && state::read(Field::GUEST_INTERRUPTIBILITY) & SHADOWS == 0
}

/// Sets interrupt-window exiting for the loaded vCPU.
pub fn exit_when_it_can(on: bool) {
    Cpu::note_window(on);
    state::exit_when_it_can(on);
}

/// Whether the loaded vCPU has interrupts enabled (RFLAGS.IF).
pub fn interrupts_on() -> bool {
    state::read(Field::GUEST_RFLAGS) & IF != 0
}
