//! PUSH and POP.

use crate::decoded::{Base, Decoded};
use crate::operand::Place;
use crate::{CodeSize, Fault, Intent, SegmentName, Vcpu, Width};

/// RSP.
const POINTER: u8 = 4;

/// The width of the stack pointer: RSP, ESP or SP.
fn pointer_width(decoded: &Decoded, vcpu: &impl Vcpu) -> Width {
    if decoded.code_size == CodeSize::Bits64 {
        Width::Qword
    } else if vcpu.segment(SegmentName::Ss).big {
        Width::Dword
    } else {
        Width::Word
    }
}

/// RSP with `bytes` added to the part of it that is the stack pointer.
fn moved(pointer: u64, bytes: u64, width: Width) -> u64 {
    width.merge(pointer, pointer.wrapping_add(bytes))
}

pub(crate) fn push(decoded: &Decoded, vcpu: &mut impl Vcpu, value: u64) -> Result<(), Fault> {
    let width = pointer_width(decoded, vcpu);
    let pointer = moved(vcpu.register(POINTER), decoded.width.bytes().wrapping_neg(), width);
    let linear = decoded.linear(vcpu, SegmentName::Ss, pointer & width.mask(), decoded.width, true)?;
    vcpu.store(linear, decoded.width, value)?;
    vcpu.set_register(POINTER, pointer);
    Ok(())
}

/// The value on top, and RSP without it.
fn top(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(u64, u64), Fault> {
    let width = pointer_width(decoded, vcpu);
    let pointer = vcpu.register(POINTER);
    let linear = decoded.linear(vcpu, SegmentName::Ss, pointer & width.mask(), decoded.width, false)?;
    let value = vcpu.load(linear, decoded.width, Intent::Use)?;
    Ok((value & decoded.width.mask(), moved(pointer, decoded.width.bytes(), width)))
}

pub(crate) fn pop_to_register(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
    let (value, pointer) = top(decoded, vcpu)?;
    // In this order, as RSP itself may be popped.
    vcpu.set_register(POINTER, pointer);
    decoded.set_source(vcpu, decoded.width, value);
    Ok(())
}

pub(crate) fn pop_to_memory(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    let (value, pointer) = top(decoded, vcpu)?;
    let mut offset = decoded.offset(vcpu);
    if decoded.base == Base::Register(POINTER) {
        // An address made from RSP sees it after the pop.
        offset = offset.wrapping_add(decoded.width.bytes()) & decoded.address_width.mask();
    }
    // The exit may have been for the stack: then its address is not that of the operand.
    let place = match decoded.place(vcpu, offset, exit, true)? {
        Place::Device(_) => Place::Linear(decoded.linear(vcpu, decoded.segment, offset, decoded.width, true)?),
        linear => linear,
    };
    decoded.write(vcpu, place, value)?;
    vcpu.set_register(POINTER, pointer);
    Ok(())
}
