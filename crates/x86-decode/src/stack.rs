//! PUSH, POP, ENTER and LEAVE.

use crate::decoded::{Base, Decoded};
use crate::operand::Place;
use crate::operation::Source;
use crate::{CodeSize, Fault, Intent, SegmentName, Vcpu, Width};

/// Number of RSP in encodings of instructions, and in [`Vcpu::register`].
pub(crate) const RSP: u8 = 4;
/// Number of RBP.
const RBP: u8 = 5;

/// Returns the width of the stack pointer: RSP, ESP or SP.
fn pointer_width(decoded: &Decoded, vcpu: &impl Vcpu) -> Width {
    if decoded.code_size == CodeSize::Bits64 {
        Width::Qword
    } else if vcpu.segment(SegmentName::Ss).big {
        Width::Dword
    } else {
        Width::Word
    }
}

/// Returns RSP with `bytes` added to its low `width` bits.
fn moved(pointer: u64, bytes: u64, width: Width) -> u64 {
    width.merge(pointer, pointer.wrapping_add(bytes))
}

/// Pushes a value with the operand's width. RSP changes only if the store succeeds.
pub(crate) fn push(decoded: &Decoded, vcpu: &mut impl Vcpu, value: u64) -> Result<(), Fault> {
    let pointer = push_at(decoded, vcpu, vcpu.register(RSP), value)?;
    vcpu.set_register(RSP, pointer);
    Ok(())
}

/// Pushes below `pointer`, a value of RSP, and returns the new RSP.
pub(crate) fn push_at(decoded: &Decoded, vcpu: &mut impl Vcpu, pointer: u64, value: u64) -> Result<u64, Fault> {
    let (linear, pointer) = below(decoded, vcpu, pointer)?;
    vcpu.store(linear, decoded.width, value & decoded.width.mask())?;
    Ok(pointer)
}

/// Checks a push below `pointer` without performing it, and returns the new RSP.
pub(crate) fn check_push(decoded: &Decoded, vcpu: &mut impl Vcpu, pointer: u64) -> Result<u64, Fault> {
    let (linear, pointer) = below(decoded, vcpu, pointer)?;
    vcpu.check_store(linear, decoded.width.bytes())?;
    Ok(pointer)
}

/// Returns the linear address of a push below `pointer`, and the new RSP.
fn below(decoded: &Decoded, vcpu: &impl Vcpu, pointer: u64) -> Result<(u64, u64), Fault> {
    let width = pointer_width(decoded, vcpu);
    let pointer = moved(pointer, decoded.width.bytes().wrapping_neg(), width);
    let linear = decoded.linear(vcpu, SegmentName::Ss, pointer & width.mask(), decoded.width.bytes(), true)?;
    Ok((linear, pointer))
}

/// Returns the value on top of the stack, and RSP after a pop.
pub(crate) fn top(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(u64, u64), Fault> {
    top_at(decoded, vcpu, vcpu.register(RSP))
}

/// Returns the value on top of the stack at `pointer`, a value of RSP, and RSP after a pop.
pub(crate) fn top_at(decoded: &Decoded, vcpu: &mut impl Vcpu, pointer: u64) -> Result<(u64, u64), Fault> {
    let width = pointer_width(decoded, vcpu);
    let linear = decoded.linear(vcpu, SegmentName::Ss, pointer & width.mask(), decoded.width.bytes(), false)?;
    let value = vcpu.load(linear, decoded.width, Intent::Use)?;
    Ok((value & decoded.width.mask(), moved(pointer, decoded.width.bytes(), width)))
}

/// Returns `pointer`, a value of RSP, with `bytes` released.
pub(crate) fn dropped(decoded: &Decoded, vcpu: &impl Vcpu, pointer: u64, bytes: u64) -> u64 {
    moved(pointer, bytes, pointer_width(decoded, vcpu))
}

/// POP of a register.
pub(crate) fn pop_to_register(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
    let (value, pointer) = top(decoded, vcpu)?;
    // RSP first: the popped register may be RSP itself.
    vcpu.set_register(RSP, pointer);
    decoded.set_source(vcpu, decoded.width, value);
    Ok(())
}

/// POP of a memory operand, for an exit at the guest-physical address `exit`. RSP changes only if the store succeeds.
pub(crate) fn pop_to_memory(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    let (value, pointer) = top(decoded, vcpu)?;
    let mut offset = decoded.offset(vcpu);
    if decoded.base == Base::Register(RSP) {
        // An operand address with base RSP uses RSP after the pop (SDM, POP).
        offset = offset.wrapping_add(decoded.width.bytes()) & decoded.address_width.mask();
    }
    // The exit may have been one of the stack access, at an address with the operand's page offset: translate the operand
    // instead of taking the exit's address for it.
    let place = match decoded.place(vcpu, offset, exit, true)? {
        Place::Device(_) => Place::Linear(decoded.linear(vcpu, decoded.segment, offset, decoded.width.bytes(), true)?),
        linear => linear,
    };
    decoded.write(vcpu, place, value)?;
    vcpu.set_register(RSP, pointer);
    Ok(())
}

/// ENTER: builds a stack frame, with copies of outer frame pointers for nested procedures.
pub(crate) fn enter(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
    let Source::Both(level, size) = decoded.source else { return Err(Fault::InvalidOpcode) };
    let width = pointer_width(decoded, vcpu);
    let mut older = vcpu.register(RBP);
    let frame = push_at(decoded, vcpu, vcpu.register(RSP), older)?;
    let mut pointer = frame;
    let levels = level % 32;
    for _ in 1..levels {
        older = moved(older, decoded.width.bytes().wrapping_neg(), width);
        let (address, _) = top_at(decoded, vcpu, older)?;
        pointer = push_at(decoded, vcpu, pointer, address)?;
    }
    if levels > 0 {
        pointer = push_at(decoded, vcpu, pointer, frame)?;
    }
    let pointer = moved(pointer, u64::from(size as u16).wrapping_neg(), width);
    // A write at the final stack pointer must not fault, or ENTER does (SDM, ENTER).
    let linear = decoded.linear(vcpu, SegmentName::Ss, pointer & width.mask(), decoded.width.bytes(), true)?;
    vcpu.check_store(linear, decoded.width.bytes())?;
    vcpu.set_register(RSP, pointer);
    vcpu.set_register(RBP, decoded.width.merge(vcpu.register(RBP), frame));
    Ok(())
}

/// LEAVE: restores the caller's frame.
pub(crate) fn leave(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
    let width = pointer_width(decoded, vcpu);
    let frame = width.merge(vcpu.register(RSP), vcpu.register(RBP));
    let (older, pointer) = top_at(decoded, vcpu, frame)?;
    vcpu.set_register(RSP, pointer);
    vcpu.set_register(RBP, decoded.width.merge(vcpu.register(RBP), older));
    Ok(())
}
