//! Event injection (the manual, "VM-Entry Controls for Event Injection").

use crate::arch::x86_64::virt::state::{self, Field};
pub use crate::arch::x86_64::virt::state::{end_shadow, end_step, pend_step, set_fault_address};

/// Valid bit of [`Field::ENTRY_INTERRUPTION`]; type 0 is an external interrupt (the manual, "VM-Entry Controls for
/// Event Injection").
pub const VALID: u64 = 1 << 31;
/// RFLAGS.TF.
pub const TF: u64 = 1 << 8;

/// Event types, in both the interruption-information and IDT-vectoring fields.
pub const TYPE: u64 = 7 << 8;
pub const EXTERNAL: u64 = 0;
pub const NMI: u64 = 2 << 8;
const HARDWARE_EXCEPTION: u64 = 3 << 8;
const ERROR_CODE: u64 = 1 << 11;
/// Undefined, or of another meaning, in fields that report events; reserved in the field that injects.
const UNDEFINED: u64 = 1 << 12;
/// [`Field::GUEST_INTERRUPTIBILITY`]: blocking by NMI.
pub const NMI_BLOCKED: u64 = 1 << 3;

/// Vectors of exceptions.
pub mod vector {
    pub const DEBUG: u8 = 1;
    pub const UNDEFINED: u8 = 6;
    pub const DOUBLE_FAULT: u8 = 8;
    pub const PROTECTION: u8 = 13;
    pub const ALIGNMENT: u8 = 17;
}

/// The exception bitmap: those whose delivery can raise the next one endlessly (`handler/exception.rs`, `vmx/handler/intercepted.rs`).
pub const INTERCEPTED: u64 = 1 << vector::DEBUG | 1 << vector::ALIGNMENT;

/// Whether interruption information is of an NMI.
#[inline(always)]
pub const fn is_nmi(information: u64) -> bool {
    information & (VALID | TYPE) == VALID | NMI
}

/// Whether an event was being delivered when the exit occurred.
pub fn was_delivering() -> bool {
    state::read(Field::VECTORING) & VALID != 0
}

/// Re-injects the event of an IDT-vectoring field, with its error code and instruction length.
pub fn event(event: u64, code: u64) {
    if event & TYPE == NMI {
        // An NMI was taken already: blocking by NMI is cleared, and set again by the injection.
        unblock_nmis();
    }
    state::write(Field::ENTRY_ERROR_CODE, code);
    // Instruction length of a software interrupt or exception.
    state::write(Field::ENTRY_LENGTH, state::read(Field::EXIT_LENGTH));
    state::inject(event & !UNDEFINED);
}

/// Re-injects an event whose delivery caused this exit (the manual, "Information for VM Exits That Occur During Event
/// Delivery"). Returns whether there was one.
pub fn deliver_again() -> bool {
    let delivering = was_delivering();
    if delivering {
        event(state::read(Field::VECTORING), state::read(Field::VECTORING_CODE));
    }
    delivering
}

/// Replaces an event whose delivery caused this exit by a double fault. Returns false if it was a double fault
/// itself: a triple fault.
pub fn double_fault() -> bool {
    let event = state::read(Field::VECTORING);
    if event & (TYPE | 0xff) == HARDWARE_EXCEPTION | u64::from(vector::DOUBLE_FAULT) {
        return false;
    }
    exception(vector::DOUBLE_FAULT, Some(0));
    true
}

/// Sets blocking by NMI.
pub fn block_nmis() {
    state::write(Field::GUEST_INTERRUPTIBILITY, state::read(Field::GUEST_INTERRUPTIBILITY) | NMI_BLOCKED);
}

/// Clears blocking by NMI, as IRET does.
pub fn unblock_nmis() {
    state::write(Field::GUEST_INTERRUPTIBILITY, state::read(Field::GUEST_INTERRUPTIBILITY) & !NMI_BLOCKED);
}

/// Restores blocking by NMI if an interrupted IRET had cleared it and will be executed again: bit 12 of the
/// interruption `information` of the exit. The bit is undefined with NMI exiting and without virtual NMIs, where IRET does
/// not end the blocking ("Information for VM Exits Due to Vectored Events").
pub fn block_nmis_if_iret(information: u64) {
    if information & 1 << 12 != 0 && !was_delivering() && state::has_virtual_nmis() {
        block_nmis();
    }
}

/// RFLAGS.RF: suppresses a breakpoint on the next instruction.
pub const RF: u64 = 1 << 16;

/// Completes an instruction with RFLAGS.RF or TF set: clears RF, which is set during an access that exits ("Saving
/// RIP, RSP, and RFLAGS"); TF makes a single step pending.
///
/// Inlined, so that rare callers need not save registers for a call.
#[inline(always)]
pub fn finish(flags: u64) {
    if flags & RF != 0 {
        state::write(Field::GUEST_RFLAGS, flags & !RF);
    }
    if flags & TF != 0 {
        step();
    }
}

/// Completes an element of a repeated string instruction: events between instructions are taken, but no breakpoint on
/// the instruction itself.
#[cold]
pub fn pause() {
    end_shadow();
    let flags = state::read(Field::GUEST_RFLAGS);
    state::write(Field::GUEST_RFLAGS, flags | RF);
    if flags & TF != 0 {
        step();
    }
}

/// Makes a single step (#DB) pending, which entry delivers, unless BTF restricts steps to branches ("Pending debug
/// exceptions").
#[cold]
pub fn step() {
    const BTF: u64 = 1 << 1;
    if state::read(Field::GUEST_DEBUGCTL) & BTF == 0 {
        pend_step();
    }
}

/// Injects an exception. In real mode none has an error code, with which the entry would fail.
#[cold]
#[inline(never)]
pub fn exception(vector: u8, code: Option<u32>) {
    const PE: u64 = 1;
    let event = VALID | HARDWARE_EXCEPTION | u64::from(vector);
    let event = match code {
        Some(code) if state::read(Field::GUEST_CR0) & PE != 0 => {
            state::write(Field::ENTRY_ERROR_CODE, code.into());
            event | ERROR_CODE
        }
        _ => event,
    };
    // The debug exception is that of a task switch, which is a trap.
    if !matches!(vector, vector::DEBUG | vector::DOUBLE_FAULT) {
        // A fault's handler returns to an instruction whose breakpoint was already taken ("Resume Flag").
        state::write(Field::GUEST_RFLAGS, state::read(Field::GUEST_RFLAGS) | RF);
    }
    state::write(Field::ENTRY_INTERRUPTION, event);
}

/// Completes MOV SS: sets blocking until after the next instruction.
pub fn begin_shadow() {
    const BY_MOV_SS: u64 = 1 << 1;
    state::write(Field::GUEST_INTERRUPTIBILITY, state::read(Field::GUEST_INTERRUPTIBILITY) | BY_MOV_SS);
}

/// Injects #DB, whose cause `handler/exception.rs` has set in DR6.
pub fn debug() {
    exception(vector::DEBUG, None);
}

/// Injects #UD.
pub fn undefined() {
    exception(vector::UNDEFINED, None);
}

/// Injects #GP(0).
pub fn general_protection() {
    exception(vector::PROTECTION, Some(0));
}
