//! Events that are injected at entry (the manual, "VM-Entry Controls for Event Injection").

use crate::arch::x86_64::host::vmcs::{self, Field};
use crate::arch::x86_64::interrupts::window::VALID;

/// RFLAGS.TF.
pub const TF: u64 = 1 << 8;

/// Types of events, in both of the fields that name one.
const TYPE: u64 = 7 << 8;
const NMI: u64 = 2 << 8;
const HARDWARE_EXCEPTION: u64 = 3 << 8;
const ERROR_CODE: u64 = 1 << 11;
/// Undefined or of another meaning in the fields that tell of events, reserved in the one that injects them.
const UNDEFINED: u64 = 1 << 12;
/// In [`Field::GUEST_INTERRUPTIBILITY`]: an NMI is being handled.
const NMI_BLOCKED: u64 = 1 << 3;

/// Vectors of exceptions.
mod vector {
    pub const DEBUG: u8 = 1;
    pub const UNDEFINED: u8 = 6;
    pub const DOUBLE_FAULT: u8 = 8;
    pub const PROTECTION: u8 = 13;
}

/// The instruction after STI or MOV SS is done: interrupts are blocked no longer.
#[inline(always)]
pub fn end_shadow() {
    let blocked = vmcs::read(Field::GUEST_INTERRUPTIBILITY);
    if blocked & 0b11 != 0 {
        vmcs::write(Field::GUEST_INTERRUPTIBILITY, blocked & !0b11);
    }
}

/// Whether an event was being delivered when the exit came.
pub fn was_delivering() -> bool {
    vmcs::read(Field::VECTORING) & VALID != 0
}

/// The event of a field that tells of one, with its error code and where it goes on, is delivered at entry.
pub fn event(event: u64, code: u64) {
    if event & TYPE == NMI {
        // It was taken already, and is taken anew.
        unblock_nmis();
    }
    vmcs::write(Field::ENTRY_ERROR_CODE, code);
    // Of a software interrupt or exception: where it goes on.
    vmcs::write(Field::ENTRY_LENGTH, vmcs::read(Field::EXIT_LENGTH));
    vmcs::write(Field::ENTRY_INTERRUPTION, event & !UNDEFINED);
}

/// An event whose delivery ended in this exit is delivered at entry (the manual, "Information for VM Exits That Occur During Event
/// Delivery"). Returns whether there was one.
pub fn deliver_again() -> bool {
    let delivering = was_delivering();
    if delivering {
        event(vmcs::read(Field::VECTORING), vmcs::read(Field::VECTORING_CODE));
    }
    delivering
}

/// An event whose delivery ended in this exit can't be delivered: a double fault takes its place. False if it was one itself, which is the end.
pub fn double_fault() -> bool {
    let event = vmcs::read(Field::VECTORING);
    if event & (TYPE | 0xff) == HARDWARE_EXCEPTION | u64::from(vector::DOUBLE_FAULT) {
        return false;
    }
    exception(vector::DOUBLE_FAULT, Some(0));
    true
}

/// An NMI is being handled: no other comes before IRET.
pub fn block_nmis() {
    vmcs::write(Field::GUEST_INTERRUPTIBILITY, vmcs::read(Field::GUEST_INTERRUPTIBILITY) | NMI_BLOCKED);
}

/// IRET ends the handling of an NMI.
pub fn unblock_nmis() {
    vmcs::write(Field::GUEST_INTERRUPTIBILITY, vmcs::read(Field::GUEST_INTERRUPTIBILITY) & !NMI_BLOCKED);
}

/// IRET had ended the handling of an NMI when it was stopped, and is to be done again: `told` is the field that says so, in bit 12.
pub fn block_nmis_if_iret(told: u64) {
    if told & 1 << 12 != 0 && !was_delivering() {
        block_nmis();
    }
}

/// RFLAGS.RF: the next instruction has no breakpoint.
pub const RF: u64 = 1 << 16;

/// Completes an instruction with RFLAGS.RF or TF set: RF ends, which is set while an access
/// is made that ends in an exit ("Saving RIP, RSP, and RFLAGS"); the latter is a step.
///
/// Inlined, so that who rarely comes here need not keep registers for a call.
#[inline(always)]
pub fn finish(flags: u64) {
    if flags & RF != 0 {
        vmcs::write(Field::GUEST_RFLAGS, flags & !RF);
    }
    if flags & TF != 0 {
        step();
    }
}

/// An element of a repetition is done, and the instruction is not: what comes between instructions comes now, but not a breakpoint on it.
#[cold]
pub fn pause() {
    end_shadow();
    let flags = vmcs::read(Field::GUEST_RFLAGS);
    vmcs::write(Field::GUEST_RFLAGS, flags | RF);
    if flags & TF != 0 {
        step();
    }
}

/// #DB of a single step, which the processor delivers at entry, unless only branches are steps ("Pending debug exceptions").
#[cold]
pub fn step() {
    const BTF: u64 = 1 << 1;
    if vmcs::read(Field::GUEST_DEBUGCTL) & BTF == 0 {
        pend_step();
    }
}

/// A single step in "pending debug exceptions".
const BS: u64 = 1 << 14;

/// A single step that is pending comes to nothing.
pub fn end_step() {
    vmcs::write(Field::GUEST_PENDING_DEBUG, vmcs::read(Field::GUEST_PENDING_DEBUG) & !BS);
}

/// Marks a single step as pending.
pub fn pend_step() {
    vmcs::write(Field::GUEST_PENDING_DEBUG, vmcs::read(Field::GUEST_PENDING_DEBUG) | BS);
}

/// An exception. In real mode none has an error code, and an entry with one fails.
#[cold]
#[inline(never)]
pub fn exception(vector: u8, code: Option<u32>) {
    const PE: u64 = 1;
    let event = VALID | HARDWARE_EXCEPTION | u64::from(vector);
    let event = match code {
        Some(code) if vmcs::read(Field::GUEST_CR0) & PE != 0 => {
            vmcs::write(Field::ENTRY_ERROR_CODE, code.into());
            event | ERROR_CODE
        }
        _ => event,
    };
    // The debug exception is that of a task switch, which is a trap.
    if !matches!(vector, vector::DEBUG | vector::DOUBLE_FAULT) {
        // A fault's handler comes back to an instruction whose breakpoint has been ("Resume Flag").
        vmcs::write(Field::GUEST_RFLAGS, vmcs::read(Field::GUEST_RFLAGS) | RF);
    }
    vmcs::write(Field::ENTRY_INTERRUPTION, event);
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

/// #DB: what `handler/exception.rs` has told of in DR6.
pub fn debug() {
    exception(vector::DEBUG, None);
}

/// #UD: an instruction that there is not.
pub fn undefined() {
    exception(vector::UNDEFINED, None);
}

/// #GP(0): an instruction that may not do what it tries.
pub fn general_protection() {
    exception(vector::PROTECTION, Some(0));
}
