//! Near JMP, CALL and RET whose target or stack is in a device.

use crate::decoded::Decoded;
use crate::operation::Source;
use crate::{CodeSize, Fault, Intent, Outcome, SegmentName, Vcpu, stack};

/// Checks that `target` is a valid instruction pointer.
fn checked(decoded: &Decoded, vcpu: &impl Vcpu, target: u64) -> Result<Outcome, Fault> {
    let inside = match decoded.code_size {
        CodeSize::Bits64 => vcpu.canonical(target),
        _ => target <= vcpu.segment(SegmentName::Cs).limit.into(),
    };
    if inside { Ok(Outcome::Jump(target)) } else { Err(Fault::Protection) }
}

fn target_in_memory(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<Outcome, Fault> {
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
    let target = decoded.read(vcpu, place, Intent::Use)?;
    checked(decoded, vcpu, target)
}

pub(crate) fn jump(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<Outcome, Fault> {
    target_in_memory(decoded, vcpu, exit)
}

fn push_next(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
    let next = decoded.code_size.advance(vcpu.rip(), decoded.length);
    stack::push(decoded, vcpu, next)
}

pub(crate) fn call_memory(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<Outcome, Fault> {
    let target = target_in_memory(decoded, vcpu, exit)?;
    push_next(decoded, vcpu)?;
    Ok(target)
}

pub(crate) fn call(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    let target = match decoded.source {
        Source::Immediate(_) => vcpu.rip().wrapping_add(decoded.displacement) & decoded.width.mask(),
        _ => decoded.source(vcpu),
    };
    let target = checked(decoded, vcpu, target)?;
    push_next(decoded, vcpu)?;
    Ok(target)
}

pub(crate) fn ret(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    let (target, pointer) = stack::top(decoded, vcpu)?;
    let target = checked(decoded, vcpu, target)?;
    let dropped = if let Source::Immediate(bytes) = decoded.source { bytes as u16 } else { 0 };
    let pointer = stack::dropped(decoded, vcpu, pointer, dropped.into());
    vcpu.set_register(stack::RSP, pointer);
    Ok(target)
}
