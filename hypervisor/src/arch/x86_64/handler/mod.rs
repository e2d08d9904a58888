//! Exit handlers, one file for each kind of exit. `exit.S` calls them with the CPU's block; the returned
//! [`crate::cpu::Outcome`] has the ledger's row and whether the vCPU is re-entered.

pub mod complete;
pub mod counters;
pub mod cpuid;
pub mod exception;
pub mod instruction;
pub mod interrupt;
pub mod io;
pub mod mmio;
pub mod msr;
pub mod task;
pub mod window;
pub mod xsetbv;

pub use exception::resume_or_leave;
pub use instruction::{NO_SUCH_CALL, SEND_IPI};
pub use interrupt::{handle_interrupt, idle as idle_interrupt};
pub use msr::{handle_rdmsr, handle_wrmsr};

use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::vcpu::inject::{self, TF};
use crate::arch::x86_64::virt::state::{self, Field};
use crate::cpu::Outcome;
use crate::vm::power::End;
use stile_ledger::RowId;
use stile_wire::{Crash, CrashReason};

/// Skips the instruction. Returns RFLAGS.
#[inline(always)]
pub fn skip_instruction() -> u64 {
    advance_to(state::read(Field::GUEST_RIP).wrapping_add(state::read(Field::EXIT_LENGTH)))
}

/// Completes the instruction before `next`: ends blocking of interrupts, and makes a single step pending. Returns
/// RFLAGS.
#[inline(always)]
fn advance_to(next: u64) -> u64 {
    advance(next, TF | inject::RF, inject::finish)
}

/// Skips an access to the local APIC's page. Leaves RFLAGS.RF set, as the exit has it ("Saving RIP, RSP, and
/// RFLAGS"): it only suppresses a breakpoint on the next instruction, and clearing it would cost a VMWRITE per
/// access.
#[inline(always)]
fn advance_from_apic(next: u64) -> u64 {
    advance(next, TF, |_| inject::step())
}

/// Continues at `next`. If one of the flags in `special` is set, there is more to do.
#[inline(always)]
fn advance(next: u64, special: u64, more: impl FnOnce(u64)) -> u64 {
    state::write(Field::GUEST_RIP, next);
    inject::end_shadow();
    let flags = state::read(Field::GUEST_RFLAGS);
    if flags & special != 0 {
        more(flags);
    }
    flags
}

/// Ends the VM: the guest cannot continue.
pub fn crash(cpu: &mut Cpu, row: RowId, reason: CrashReason, exit_reason: u64, address: u64) -> Outcome {
    let vcpu = cpu.vcpu().id.vcpu();
    let pc = state::read(Field::GUEST_CS_BASE).wrapping_add(state::read(Field::GUEST_RIP));
    cpu.end_vm(row, End::Crash(Crash { reason, vcpu, pc, syndrome: exit_reason, address }))
}
