//! Handlers of each kind of exit. Every handler is called from `exit.S` with the CPU's block, and says with its
//! [`crate::arch::x86_64::exit::Outcome`] which line of the ledger the exit belongs to and whether its vCPU goes on.

mod apic;
mod cpuid;
mod entry;
mod exception;
mod instruction;
mod interrupt;
pub mod io;
pub mod mmio;
mod msr;
mod other;
mod task;

pub use entry::fail as fail_entry;
pub use exception::{BITMAP as EXCEPTIONS, debug, resume_or_leave};
pub use interrupt::{handle_interrupt, idle as idle_interrupt};
pub use msr::{Kept, handle_rdmsr, handle_wrmsr};

use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::vcpu::inject::{self, TF};
use crate::vm::power::End;
use stile_ledger::RowId;
use stile_wire::{Crash, CrashReason};

/// The instruction is done: goes on after it. Returns RFLAGS.
#[inline(always)]
pub fn skip_instruction() -> u64 {
    advance_to(vmcs::read(Field::GUEST_RIP).wrapping_add(vmcs::read(Field::EXIT_LENGTH)))
}

/// The instruction before `next` is done: interrupts are blocked no longer, and a guest that steps through its code stops here. Returns
/// RFLAGS.
#[inline(always)]
fn advance_to(next: u64) -> u64 {
    advance(next, TF | inject::RF, inject::finish)
}

/// Steps over an access to the local APIC's page. RFLAGS.RF, which an access that exits sets ("Saving RIP, RSP, and RFLAGS"), stays: all
/// that it does is that a breakpoint on the very next instruction is not met, and to end it would cost each such access a VMWRITE.
#[inline(always)]
fn advance_from_apic(next: u64) -> u64 {
    advance(next, TF, |_| inject::step())
}

/// Goes on at `next`. With one of the flags in `special` there is more to do.
#[inline(always)]
fn advance(next: u64, special: u64, more: impl FnOnce(u64)) -> u64 {
    vmcs::write(Field::GUEST_RIP, next);
    inject::end_shadow();
    let flags = vmcs::read(Field::GUEST_RFLAGS);
    if flags & special != 0 {
        more(flags);
    }
    flags
}

/// The guest can't go on: its VM ends.
pub fn crash(cpu: &mut Cpu, row: RowId, reason: CrashReason, exit_reason: u64, address: u64) -> Outcome {
    let vcpu = cpu.vcpu().id.vcpu();
    let pc = vmcs::read(Field::GUEST_CS_BASE).wrapping_add(vmcs::read(Field::GUEST_RIP));
    cpu.end_vm(row, End::Crash(Crash { reason, vcpu, pc, syndrome: exit_reason, address }))
}
