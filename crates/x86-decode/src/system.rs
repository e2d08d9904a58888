//! Stores and loads of system registers: SMSW, LMSW, SGDT, SIDT, LGDT and LIDT.

use crate::decoded::Decoded;
use crate::names::TableName;
use crate::{Control, Fault, Intent, Vcpu, Width};

/// #GP(0) in user mode if CR4.UMIP is set.
pub(crate) fn check_user(vcpu: &impl Vcpu) -> Result<(), Fault> {
    const UMIP: u64 = 1 << 11;
    let secret = vcpu.privilege() != 0 && vcpu.control(Control::Cr4) & UMIP != 0;
    if secret { Err(Fault::Protection) } else { Ok(()) }
}

fn check_system(vcpu: &impl Vcpu) -> Result<(), Fault> {
    if vcpu.privilege() == 0 { Ok(()) } else { Err(Fault::Protection) }
}

pub(crate) fn store_status(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    check_user(vcpu)?;
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, true)?;
    let status = vcpu.control(Control::Cr0);
    decoded.write(vcpu, place, status)
}

/// LMSW: writes CR0[3:0], but cannot clear PE.
pub(crate) fn load_status(decoded: &Decoded, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    const PE: u64 = 1;
    const STATUS: u64 = 0b1111;
    check_system(vcpu)?;
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
    let status = decoded.read(vcpu, place, Intent::Use)? & STATUS;
    let old = vcpu.control(Control::Cr0);
    vcpu.set_cr0(old & !STATUS | status | old & PE)
}

/// Returns the mask of a table's base, whose width is the decoded operand's width.
fn base_mask(decoded: &Decoded) -> u64 {
    const BITS_24: u64 = 0xff_ffff;
    // A 16-bit operand size loads 24 bits of the base.
    if decoded.width == Width::Word { BITS_24 } else { decoded.width.mask() }
}

pub(crate) fn store_table(decoded: &Decoded, name: TableName, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    check_user(vcpu)?;
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, true)?;
    let (base, limit) = vcpu.table(name);
    let bytes = (u128::from(base) << 16 | u128::from(limit)).to_le_bytes();
    decoded.write_bytes(vcpu, place, bytes.get(..decoded.bytes() as usize).unwrap_or_default())
}

pub(crate) fn load_table(decoded: &Decoded, name: TableName, vcpu: &mut impl Vcpu, exit: u64) -> Result<(), Fault> {
    check_system(vcpu)?;
    let place = decoded.place(vcpu, decoded.offset(vcpu), exit, false)?;
    let mut bytes = [0; 10];
    let length = (decoded.bytes() as usize).min(bytes.len());
    decoded.read_bytes(vcpu, place, bytes.get_mut(..length).unwrap_or_default(), Intent::Use)?;
    let whole = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte));
    let base = (whole >> 16) as u64 & base_mask(decoded);
    if !vcpu.canonical(base) {
        return Err(Fault::Protection);
    }
    vcpu.set_table(name, base, whole as u16);
    Ok(())
}
