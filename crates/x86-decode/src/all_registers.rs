//! PUSHA and POPA: all general registers on the stack ("PUSHA/PUSHAD", "POPA/POPAD").

use crate::decoded::Decoded;
use crate::stack::{self, RSP};
use crate::{Fault, Vcpu};

/// The registers in push order. RSP is pushed with its value before the instruction.
const ORDER: [u8; 8] = [0, 1, 2, 3, RSP, 5, 6, 7];

pub(crate) fn push(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
    let mut pointer = vcpu.register(RSP);
    // Check all pushes first: the instruction has no partial effect.
    for _ in ORDER {
        pointer = stack::check_push(decoded, vcpu, pointer)?;
    }
    pointer = vcpu.register(RSP);
    for register in ORDER {
        pointer = stack::push_at(decoded, vcpu, pointer, vcpu.register(register))?;
    }
    vcpu.set_register(RSP, pointer);
    Ok(())
}

pub(crate) fn pop(decoded: &Decoded, vcpu: &mut impl Vcpu) -> Result<(), Fault> {
    let mut pointer = vcpu.register(RSP);
    let mut values = [0; ORDER.len()];
    for value in &mut values {
        (*value, pointer) = stack::top_at(decoded, vcpu, pointer)?;
    }
    for (register, value) in ORDER.into_iter().rev().zip(values) {
        // POPA discards the saved stack pointer.
        let new = if register == RSP { pointer } else { decoded.width.merge(vcpu.register(register), value) };
        vcpu.set_register(register, new);
    }
    Ok(())
}
