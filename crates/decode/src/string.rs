//! STOS, MOVS, INS and OUTS, alone and repeated.

use crate::alu::DF;
use crate::decoded::Decoded;
use crate::{Fault, Intent, Outcome, SegmentName, Vcpu};

/// The most elements that are done before the guest gets a chance to take an interrupt.
const CHUNK: u32 = 64;

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

pub(crate) fn copy(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    repeat(decoded, vcpu, |vcpu| {
        let offset = vcpu.register(RSI) & decoded.address_width.mask();
        let linear = decoded.linear(vcpu, decoded.segment, offset, decoded.width, false)?;
        let value = vcpu.load(linear, decoded.width, Intent::Use)?;
        write(decoded, vcpu, value & decoded.width.mask())?;
        step(decoded, vcpu, RSI);
        step(decoded, vcpu, RDI);
        Ok(())
    })
}

pub(crate) fn input(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    if !vcpu.may_use_ports() {
        return Ok(Outcome::Partial);
    }
    let port = vcpu.register(RDX) as u16;
    repeat(decoded, vcpu, |vcpu| {
        let offset = vcpu.register(RDI) & decoded.address_width.mask();
        let linear = decoded.linear(vcpu, SegmentName::Es, offset, decoded.width, true)?;
        vcpu.check_store(linear, decoded.width)?;
        let value = vcpu.port_read(port, decoded.width) & decoded.width.mask();
        vcpu.store(linear, decoded.width, value)?;
        step(decoded, vcpu, RDI);
        Ok(())
    })
}

pub(crate) fn output(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    if !vcpu.may_use_ports() {
        return Ok(Outcome::Partial);
    }
    let port = vcpu.register(RDX) as u16;
    repeat(decoded, vcpu, |vcpu| {
        let offset = vcpu.register(RSI) & decoded.address_width.mask();
        let linear = decoded.linear(vcpu, decoded.segment, offset, decoded.width, false)?;
        let value = vcpu.load(linear, decoded.width, Intent::Use)?;
        vcpu.port_write(port, decoded.width, value & decoded.width.mask());
        step(decoded, vcpu, RSI);
        Ok(())
    })
}

/// Stores an element at ES:RDI, which no prefix changes.
fn write(decoded: &Decoded, vcpu: &mut impl Vcpu, value: u64) -> Result<(), Fault> {
    let offset = vcpu.register(RDI) & decoded.address_width.mask();
    let linear = decoded.linear(vcpu, SegmentName::Es, offset, decoded.width, true)?;
    vcpu.store(linear, decoded.width, value)
}

/// Moves RSI or RDI to the next element.
fn step(decoded: &Decoded, vcpu: &mut impl Vcpu, register: u8) {
    let bytes = decoded.width.bytes();
    let bytes = if vcpu.flags() & DF == 0 { bytes } else { bytes.wrapping_neg() };
    add(decoded, vcpu, register, bytes);
}

fn add(decoded: &Decoded, vcpu: &mut impl Vcpu, register: u8, number: u64) {
    let old = vcpu.register(register);
    vcpu.set_register(register, decoded.address_width.merge(old, old.wrapping_add(number)));
}

fn repeat<V: Vcpu>(decoded: &Decoded, vcpu: &mut V, mut once: impl FnMut(&mut V) -> Result<(), Fault>) -> Result<Outcome, Fault> {
    if !decoded.repeat {
        return once(vcpu).map(|()| Outcome::Complete);
    }
    for _ in 0..CHUNK {
        if vcpu.register(RCX) & decoded.address_width.mask() == 0 {
            return Ok(Outcome::Complete);
        }
        once(vcpu)?;
        add(decoded, vcpu, RCX, u64::MAX);
    }
    Ok(Outcome::Partial)
}
