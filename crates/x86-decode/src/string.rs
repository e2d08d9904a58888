//! STOS, LODS, MOVS, SCAS, CMPS, INS and OUTS, alone and repeated.

use crate::alu;
use crate::decoded::Decoded;
use crate::operation::{Alu, Repeat};
use crate::rflags::{DF, ZF};
use crate::{Fault, Intent, Outcome, SegmentName, Vcpu};

/// Elements processed in one exit, before the guest may take an interrupt. INS from the clock costs some 3,000 instructions an element (two
/// page walks and the date), more if a device raises interrupts; an exit must take less than 200,000.
const CHUNK: u32 = 8;

/// RFLAGS.TF: single-stepping.
const TF: u64 = 1 << 8;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RSI: u8 = 6;
const RDI: u8 = 7;

pub(crate) fn store(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    let value = vcpu.register(RAX) & decoded.width.mask();
    repeat(decoded, vcpu, |vcpu| {
        write(decoded, vcpu, value)?;
        step(decoded, vcpu, RDI);
        Ok(())
    })
}

pub(crate) fn load(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    repeat(decoded, vcpu, |vcpu| {
        let value = read_source(decoded, vcpu)?;
        vcpu.set_register(RAX, decoded.width.merge(vcpu.register(RAX), value));
        step(decoded, vcpu, RSI);
        Ok(())
    })
}

pub(crate) fn scan(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    repeat_compared(decoded, vcpu, |vcpu| {
        let left = vcpu.register(RAX) & decoded.width.mask();
        let right = read_destination(decoded, vcpu)?;
        compare_values(decoded, vcpu, left, right);
        step(decoded, vcpu, RDI);
        Ok(())
    })
}

pub(crate) fn compare(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    repeat_compared(decoded, vcpu, |vcpu| {
        let left = read_source(decoded, vcpu)?;
        let right = read_destination(decoded, vcpu)?;
        compare_values(decoded, vcpu, left, right);
        step(decoded, vcpu, RSI);
        step(decoded, vcpu, RDI);
        Ok(())
    })
}

fn compare_values(decoded: &Decoded, vcpu: &mut impl Vcpu, left: u64, right: u64) {
    let (_, flags) = alu::binary(Alu::Cmp, left, right, decoded.width, vcpu.flags());
    vcpu.set_flags(flags);
}

/// Reads the element at RSI.
fn read_source(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<u64, Fault> {
    let offset = vcpu.register(RSI) & decoded.address_width.mask();
    let linear = decoded.linear(vcpu, decoded.segment, offset, decoded.width.bytes(), false)?;
    Ok(vcpu.load(linear, decoded.width, Intent::Use)? & decoded.width.mask())
}

/// Reads the element at ES:RDI. The segment cannot be overridden.
fn read_destination(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<u64, Fault> {
    let offset = vcpu.register(RDI) & decoded.address_width.mask();
    let linear = decoded.linear(vcpu, SegmentName::Es, offset, decoded.width.bytes(), false)?;
    Ok(vcpu.load(linear, decoded.width, Intent::Use)? & decoded.width.mask())
}

pub(crate) fn copy(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    repeat(decoded, vcpu, |vcpu| {
        let value = read_source(decoded, vcpu)?;
        write(decoded, vcpu, value)?;
        step(decoded, vcpu, RSI);
        step(decoded, vcpu, RDI);
        Ok(())
    })
}

pub(crate) fn input(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    let port = vcpu.register(RDX) as u16;
    if !vcpu.may_use_port(port, decoded.width, true) {
        return Ok(Outcome::Changed);
    }
    repeat(decoded, vcpu, |vcpu| {
        let offset = vcpu.register(RDI) & decoded.address_width.mask();
        let linear = decoded.linear(vcpu, SegmentName::Es, offset, decoded.width.bytes(), true)?;
        vcpu.check_store(linear, decoded.width.bytes())?;
        let value = vcpu.port_read(port, decoded.width) & decoded.width.mask();
        vcpu.store(linear, decoded.width, value)?;
        step(decoded, vcpu, RDI);
        Ok(())
    })
}

pub(crate) fn output(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    let port = vcpu.register(RDX) as u16;
    if !vcpu.may_use_port(port, decoded.width, false) {
        return Ok(Outcome::Changed);
    }
    repeat(decoded, vcpu, |vcpu| {
        let value = read_source(decoded, vcpu)?;
        vcpu.port_write(port, decoded.width, value);
        step(decoded, vcpu, RSI);
        Ok(())
    })
}

/// Stores an element at ES:RDI. The segment cannot be overridden.
fn write(decoded: &Decoded, vcpu: &mut impl Vcpu, value: u64) -> Result<(), Fault> {
    let offset = vcpu.register(RDI) & decoded.address_width.mask();
    let linear = decoded.linear(vcpu, SegmentName::Es, offset, decoded.width.bytes(), true)?;
    vcpu.store(linear, decoded.width, value)
}

/// Advances RSI or RDI to the next element.
fn step(decoded: &Decoded, vcpu: &mut impl Vcpu, register: u8) {
    let bytes = decoded.width.bytes();
    let bytes = if vcpu.flags() & DF == 0 { bytes } else { bytes.wrapping_neg() };
    add(decoded, vcpu, register, bytes);
}

fn add(decoded: &Decoded, vcpu: &mut impl Vcpu, register: u8, number: u64) {
    let old = vcpu.register(register);
    vcpu.set_register(register, decoded.address_width.merge(old, old.wrapping_add(number)));
}

fn repeat<V: Vcpu>(decoded: &Decoded, vcpu: &mut V, once: impl FnMut(&mut V) -> Result<(), Fault>) -> Result<Outcome, Fault> {
    repeat_while(decoded, vcpu, once, |_| true)
}

/// Repeats a comparison, whose result can end the repetition.
fn repeat_compared<V: Vcpu>(decoded: &Decoded, vcpu: &mut V, once: impl FnMut(&mut V) -> Result<(), Fault>) -> Result<Outcome, Fault> {
    let while_zero = decoded.repeat == Repeat::WhileEqual;
    repeat_while(decoded, vcpu, once, |vcpu| (vcpu.flags() & ZF != 0) == while_zero)
}

fn repeat_while<V: Vcpu>(
    decoded: &Decoded,
    vcpu: &mut V,
    mut once: impl FnMut(&mut V) -> Result<(), Fault>,
    goes_on: impl Fn(&V) -> bool,
) -> Result<Outcome, Fault> {
    if decoded.repeat == Repeat::No {
        return once(vcpu).map(|()| Outcome::Complete);
    }
    let left = |vcpu: &V| vcpu.register(RCX) & decoded.address_width.mask();
    if left(vcpu) == 0 {
        return Ok(Outcome::Complete);
    }
    // A single-stepping guest traps after each element.
    let most = if vcpu.flags() & TF == 0 { CHUNK } else { 1 };
    for _ in 0..most {
        once(vcpu)?;
        add(decoded, vcpu, RCX, u64::MAX);
        if left(vcpu) == 0 || !goes_on(vcpu) {
            return Ok(Outcome::Complete);
        }
    }
    Ok(Outcome::Partial)
}
