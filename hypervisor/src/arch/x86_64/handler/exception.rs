//! Debug exceptions that Stile injects, and interrupts between injected events.

use stile_ledger::RowId;

use super::{Field, interrupt, state};
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::interrupts::events;
use crate::arch::x86_64::vcpu::inject;
use crate::cpu::{Leave, Outcome};

/// Side effects of a debug exception: sets the cause in DR6, clears DR7.GD and the branch-step flag ("Debug
/// Exceptions"). A single step blocked by STI or MOV SS is pending, which entry checks.
pub fn debug(why: u64) {
    /// DR6: breakpoints; an access to a debug register, a single step, a task's T flag.
    const CONDITIONS: u64 = 0xf;
    const BD: u64 = 1 << 13;
    const BS: u64 = 1 << 14;
    const BT: u64 = 1 << 15;
    const REPORTED: u64 = CONDITIONS | BD | BS | BT;
    /// DR7.
    const GD: u64 = 1 << 13;
    const LBR_BTF: u64 = 0b11;
    const SHADOWS: u64 = 0b11;
    // The step before an access to a debug register was delivered already, or MOV SS suppressed it: Bochs reports it
    // again.
    let why = if why & BD != 0 { why & !BS } else { why };
    state::set_dr6(state::dr6() & !CONDITIONS | why & REPORTED);
    state::write(Field::GUEST_DR7, state::read(Field::GUEST_DR7) & !GD);
    if state::read(Field::GUEST_INTERRUPTIBILITY) & SHADOWS != 0 && state::read(Field::GUEST_RFLAGS) & super::TF != 0 {
        inject::step();
    }
    state::write(Field::GUEST_DEBUGCTL, state::read(Field::GUEST_DEBUGCTL) & !LBR_BTF);
}

/// The next entry injects an event, which may exit before the processor takes interrupts: takes those that are
/// pending.
pub fn resume_or_leave(cpu: &mut Cpu, row: RowId) -> Outcome {
    state::take_interrupts();
    if !cpu.has_noted() {
        return Outcome::again(row);
    }
    interrupt::idle(cpu);
    if cpu.vcpu().arch.events.init() {
        return events::leave(cpu, row);
    }
    cpu.leave = Leave::Resched;
    Outcome::leave(row)
}
