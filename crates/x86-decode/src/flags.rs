//! PUSHF and POPF ("PUSHF/PUSHFD/PUSHFQ", "POPF/POPFD/POPFQ").

use crate::decoded::Decoded;
use crate::rflags::{DF, STATUS};
use crate::{Control, Fault, Outcome, Vcpu, Width, stack};

const TF: u64 = 1 << 8;
const IF: u64 = 1 << 9;
const IOPL: u64 = 0b11 << 12;
const NT: u64 = 1 << 14;
const RF: u64 = 1 << 16;
const VM: u64 = 1 << 17;
const AC: u64 = 1 << 18;
const VIF: u64 = 1 << 19;
const VIP: u64 = 1 << 20;
const ID: u64 = 1 << 21;

/// Whether the instruction accesses VIF instead of IF: in virtual-8086 mode with IOPL below 3, if CR4.VME is set and the operand has 16
/// bits. #GP(0) with IOPL below 3 otherwise.
fn is_virtual(decoded: &Decoded, vcpu: &impl Vcpu, flags: u64) -> Result<bool, Fault> {
    const VME: u64 = 1;
    if flags & VM == 0 || flags & IOPL == IOPL {
        return Ok(false);
    }
    let virtualized = decoded.width == Width::Word && vcpu.control(Control::Cr4) & VME != 0;
    if virtualized { Ok(true) } else { Err(Fault::Protection) }
}

pub(crate) fn push(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
    let flags = vcpu.flags();
    let image = if is_virtual(decoded, vcpu, flags)? {
        let seen = if flags & VIF == 0 { 0 } else { IF };
        flags & !IF | seen | IOPL
    } else {
        flags
    };
    stack::push(decoded, vcpu, image & !(RF | VM))
}

pub(crate) fn pop(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<Outcome, Fault> {
    let old = vcpu.flags();
    let virtualized = is_virtual(decoded, vcpu, old)?;
    let (mut new, pointer) = stack::top(decoded, vcpu)?;
    let level = (old & IOPL) >> 12;
    let mut writable = STATUS | TF | DF | NT | AC | ID;
    if virtualized {
        if new & TF != 0 || new & IF != 0 && old & VIP != 0 {
            return Err(Fault::Protection);
        }
        new = new & !VIF | if new & IF == 0 { 0 } else { VIF };
    } else if vcpu.privilege() == 0 {
        writable |= IF | IOPL;
    } else if u64::from(vcpu.privilege()) <= level {
        writable |= IF;
    }
    // A 16-bit POPF preserves the upper flags.
    writable &= decoded.width.mask();
    if virtualized {
        writable |= VIF;
    }
    vcpu.set_register(stack::RSP, pointer);
    Ok(Outcome::Flags(old & !(writable | RF) | new & writable))
}
