//! What each kind of exit does. Every handler is called from `exit.S` with the CPU's block, and says with its
//! [`super::exit::Outcome`] which line of the ledger the exit belongs to and whether its vCPU goes on.

mod apic;
mod cpuid;
mod instruction;
mod interrupt;
mod io;
mod mmio;
mod msr;
mod other;
mod processor;
mod registers;

pub use interrupt::idle as idle_interrupt;
pub use msr::Kept;

use super::vmcs::{self, Field};
use crate::arch::x86_64::cpu::Cpu;
use crate::arch::x86_64::exit::Outcome;
use crate::cpu::Leave;
use crate::vm::power::{self, End};
use stile_ledger::RowId;
use stile_wire::{Crash, CrashReason};

/// The instruction is done: goes on after it. Returns RFLAGS.
#[inline(always)]
fn skip_instruction() -> u64 {
    advance_to(vmcs::read(Field::GUEST_RIP).wrapping_add(vmcs::read(Field::EXIT_LENGTH)))
}

/// The instruction before `next` is done: interrupts are blocked no longer, and a guest that steps through its code stops here. Returns
/// RFLAGS.
#[inline(always)]
fn advance_to(next: u64) -> u64 {
    vmcs::write(Field::GUEST_RIP, next);
    inject::end_shadow();
    let flags = vmcs::read(Field::GUEST_RFLAGS);
    if flags & TF != 0 {
        inject::step();
    }
    flags
}

/// RFLAGS.TF.
const TF: u64 = 1 << 8;

/// Events that are injected at entry (the manual, "VM-Entry Controls for Event Injection").
mod inject {
    use super::{Field, vmcs};
    use crate::arch::x86_64::interrupts::VALID;

    const HARDWARE_EXCEPTION: u64 = 3 << 8;
    const ERROR_CODE: u64 = 1 << 11;

    /// The instruction after STI or MOV SS is done: interrupts are blocked no longer.
    #[inline(always)]
    pub fn end_shadow() {
        let blocked = vmcs::read(Field::GUEST_INTERRUPTIBILITY);
        if blocked & 0b11 != 0 {
            vmcs::write(Field::GUEST_INTERRUPTIBILITY, blocked & !0b11);
        }
    }

    /// An event whose delivery ended in this exit is delivered at entry (the manual, "Information for VM Exits That Occur During Event
    /// Delivery").
    pub fn deliver_again() {
        /// Undefined in the one field, reserved in the other.
        const UNDEFINED: u64 = 1 << 12;
        let event = vmcs::read(Field::VECTORING);
        if event & VALID != 0 {
            vmcs::write(Field::ENTRY_ERROR_CODE, vmcs::read(Field::VECTORING_CODE));
            // Of a software interrupt or exception: where it goes on.
            vmcs::write(Field::ENTRY_LENGTH, vmcs::read(Field::EXIT_LENGTH));
            vmcs::write(Field::ENTRY_INTERRUPTION, event & !UNDEFINED);
        }
    }

    /// #DB of a single step, which the processor delivers at entry, unless only branches are steps ("Pending debug exceptions").
    #[cold]
    pub fn step() {
        const BTF: u64 = 1 << 1;
        const BS: u64 = 1 << 14;
        if vmcs::read(Field::GUEST_DEBUGCTL) & BTF == 0 {
            vmcs::write(Field::GUEST_PENDING_DEBUG, vmcs::read(Field::GUEST_PENDING_DEBUG) | BS);
        }
    }

    /// An exception of an instruction, with its error code, if it has one.
    #[cold]
    #[inline(never)]
    pub fn exception(vector: u8, code: Option<u32>) {
        if let Some(code) = code {
            vmcs::write(Field::ENTRY_ERROR_CODE, code.into());
        }
        // In real mode none has one.
        let has_code = code.is_some() && vmcs::read(Field::GUEST_CR0) & 1 != 0;
        vmcs::write(Field::ENTRY_INTERRUPTION, VALID | HARDWARE_EXCEPTION | if has_code { ERROR_CODE } else { 0 } | u64::from(vector));
    }

    /// The linear address that a page fault tells.
    pub fn set_fault_address(address: u64) {
        // SAFETY: CR2 is the guest's.
        unsafe { core::arch::asm!("mov cr2, {}", in(reg) address, options(nomem, nostack, preserves_flags)) };
    }

    /// MOV SS is done: nothing comes before the next instruction is.
    pub fn begin_shadow() {
        const BY_MOV_SS: u64 = 1 << 1;
        vmcs::write(Field::GUEST_INTERRUPTIBILITY, vmcs::read(Field::GUEST_INTERRUPTIBILITY) | BY_MOV_SS);
    }

    /// #UD: an instruction that there is not.
    pub fn undefined() {
        vmcs::write(Field::ENTRY_INTERRUPTION, VALID | HARDWARE_EXCEPTION | 6);
    }

    /// #GP(0): an instruction that may not do what it tries.
    pub fn general_protection() {
        vmcs::write(Field::ENTRY_ERROR_CODE, 0);
        vmcs::write(Field::ENTRY_INTERRUPTION, VALID | HARDWARE_EXCEPTION | ERROR_CODE | 13);
    }
}

/// The VM ends; its vCPU is left.
fn end(cpu: &mut Cpu, row: RowId, how: End) -> Outcome {
    power::end(cpu.vcpu().vm(), how);
    cpu.leave = Leave::Attention;
    Outcome::leave(row)
}

/// The guest can't go on.
fn crash(cpu: &mut Cpu, row: RowId, reason: CrashReason, exit_reason: u64, address: u64) -> Outcome {
    let vcpu = cpu.vcpu().id.vcpu();
    let pc = vmcs::read(Field::GUEST_CS_BASE).wrapping_add(vmcs::read(Field::GUEST_RIP));
    end(cpu, row, End::Crash(Crash { reason, vcpu, pc, esr: exit_reason, far: address }))
}
