//! Exit handlers, one file for each kind of exit. `exit.S` calls them with the CPU's block; the returned
//! [`crate::arch::x86_64::exit::Outcome`] has the ledger's row and whether the vCPU is re-entered.

#[cfg(not(feature = "svm"))]
mod apic;
pub mod complete;
mod cpuid;
#[cfg(not(feature = "svm"))]
mod entry;
mod exception;
#[cfg(not(feature = "svm"))]
mod gate;
mod instruction;
#[cfg(not(feature = "svm"))]
mod intercepted;
mod interrupt;
pub mod io;
pub mod mmio;
mod msr;
#[cfg(not(feature = "svm"))]
mod other;
mod task;
mod window;
mod xsetbv;

#[cfg(not(feature = "svm"))]
pub use entry::wrap;
pub use exception::resume_or_leave;
pub use instruction::{NO_SUCH_CALL, SEND_IPI};
#[cfg(not(feature = "svm"))]
pub use intercepted::side_effects;
pub use interrupt::{handle_interrupt, idle as idle_interrupt};
pub use msr::{handle_rdmsr, handle_wrmsr};
#[cfg(feature = "svm")]
pub use {
    cpuid::handle_cpuid,
    instruction::{handle_hlt, handle_vmcall},
    io::handle_io,
    mmio::{handle_ept_violation, handle_ept_violation_full},
    task::switch as switch_task,
    window::interrupt as interrupt_window,
    xsetbv::set as set_xcr0,
};

use crate::arch::x86_64::exit::Outcome;
use crate::arch::x86_64::host::cpu::Cpu;
use crate::arch::x86_64::host::state::{self, Field};
use crate::arch::x86_64::vcpu::inject::{self, TF};
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
