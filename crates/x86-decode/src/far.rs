//! Far JMP, CALL and RET to code of the same privilege. Gates, tasks and returns to an outer level are not supported.

use crate::decoded::Decoded;
use crate::names::SelectorName;
use crate::operation::Source;
use crate::{Descriptor, Fault, Outcome, SegmentName, Vcpu, selector, stack};

/// The target of a far transfer; the descriptor is none in real and virtual-8086 mode.
struct Target {
    offset: u64,
    selector: u16,
    code: Option<Descriptor>,
}

impl Target {
    /// Checks that the target is valid.
    fn checked(vcpu: &mut impl Vcpu, offset: u64, selector: u16) -> Result<Self, Fault> {
        let code = selector::code(vcpu, selector)?;
        let inside = match &code {
            Some(code) if code.is_long() => vcpu.canonical(offset),
            Some(code) => offset <= code.limit.into(),
            None => offset <= vcpu.segment(SegmentName::Cs).limit.into(),
        };
        if inside { Ok(Self { offset, selector, code }) } else { Err(Fault::Protection) }
    }

    /// Sets the descriptor's accessed flag, which may fault.
    fn mark_used(&self, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
        self.code.as_ref().map_or(Ok(()), |code| selector::mark_used(code, vcpu))
    }

    fn enter(&self, vcpu: &mut impl Vcpu) -> Outcome {
        let selector = match self.code {
            Some(_) => self.selector & !3 | u16::from(vcpu.privilege()),
            None => self.selector,
        };
        vcpu.set_segment(SegmentName::Cs, selector, self.code.as_ref());
        Outcome::Jump(self.offset)
    }
}

pub(crate) fn jump(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<Outcome, Fault> {
    let (offset, selector) = selector::far_pointer(decoded, vcpu, exit)?;
    let target = Target::checked(vcpu, offset, selector)?;
    target.mark_used(vcpu)?;
    Ok(target.enter(vcpu))
}

/// Far CALL through memory.
pub(crate) fn call_memory(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<Outcome, Fault> {
    let (offset, selector) = selector::far_pointer(decoded, vcpu, exit)?;
    call(decoded, vcpu, offset, selector)
}

/// Far CALL of an immediate pointer.
pub(crate) fn call_pointer(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    let Source::Immediate(selector) = decoded.source else { return Err(Fault::InvalidOpcode) };
    call(decoded, vcpu, decoded.displacement, selector as u16)
}

fn call(decoded: &Decoded, vcpu: &mut impl Vcpu, offset: u64, selector: u16) -> Result<Outcome, Fault> {
    let target = Target::checked(vcpu, offset, selector)?;
    let from = vcpu.selector(SelectorName::Segment(SegmentName::Cs));
    let next = decoded.code_size.advance(vcpu.rip(), decoded.length);
    let pointer = vcpu.register(stack::RSP);
    let below = stack::check_push(decoded, vcpu, pointer)?;
    stack::check_push(decoded, vcpu, below)?;
    target.mark_used(vcpu)?;
    let pointer = stack::push_at(decoded, vcpu, pointer, from.into())?;
    let pointer = stack::push_at(decoded, vcpu, pointer, next)?;
    vcpu.set_register(stack::RSP, pointer);
    Ok(target.enter(vcpu))
}

pub(crate) fn ret(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    let (offset, pointer) = stack::top(decoded, vcpu)?;
    let (selector, pointer) = stack::top_at(decoded, vcpu, pointer)?;
    let selector = selector as u16;
    if selector::is_protected(vcpu) {
        match (selector & 3).cmp(&vcpu.privilege().into()) {
            core::cmp::Ordering::Less => return Err(Fault::Selector(selector::code_of(selector))),
            core::cmp::Ordering::Equal => {}
            core::cmp::Ordering::Greater => return Err(Fault::InvalidOpcode),
        }
    }
    let target = Target::checked(vcpu, offset, selector)?;
    target.mark_used(vcpu)?;
    let dropped = if let Source::Immediate(bytes) = decoded.source { bytes as u16 } else { 0 };
    let pointer = stack::dropped(decoded, vcpu, pointer, dropped.into());
    vcpu.set_register(stack::RSP, pointer);
    Ok(target.enter(vcpu))
}
