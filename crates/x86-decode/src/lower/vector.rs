//! Decoding of vector and MMX moves.

use crate::operation::{Part, Source, Vector};
use iced_x86::{Instruction, Mnemonic, Register};

/// Returns the register of a vector or MMX move, and the part that it transfers.
pub(super) fn of(instruction: &Instruction) -> Option<Source> {
    let is_load = matches!(instruction.op0_kind(), iced_x86::OpKind::Register);
    let register = if is_load { instruction.op0_register() } else { instruction.op_register(instruction.op_count() - 1) };
    if let Some(number) = within(register, Register::MM0, Register::MM7) {
        return Some(Source::Mmx(number));
    }
    let (number, whole) = number_of_vector(register)?;
    let (part, aligned, vex) = match instruction.mnemonic() {
        Mnemonic::Movups | Mnemonic::Movupd | Mnemonic::Movdqu | Mnemonic::Lddqu => (whole, false, false),
        Mnemonic::Movaps | Mnemonic::Movapd | Mnemonic::Movdqa => (whole, true, false),
        Mnemonic::Movntps | Mnemonic::Movntpd | Mnemonic::Movntdq | Mnemonic::Movntdqa => (whole, true, false),
        Mnemonic::Movss | Mnemonic::Movsd | Mnemonic::Movd | Mnemonic::Movq => (Part::Low, false, false),
        Mnemonic::Movlps | Mnemonic::Movlpd => (Part::LowHalf, false, false),
        Mnemonic::Movhps | Mnemonic::Movhpd => (Part::HighHalf, false, false),
        Mnemonic::Vmovups | Mnemonic::Vmovupd | Mnemonic::Vmovdqu | Mnemonic::Vlddqu => (whole, false, true),
        Mnemonic::Vmovaps | Mnemonic::Vmovapd | Mnemonic::Vmovdqa => (whole, true, true),
        Mnemonic::Vmovntps | Mnemonic::Vmovntpd | Mnemonic::Vmovntdq | Mnemonic::Vmovntdqa => (whole, true, true),
        Mnemonic::Vmovss | Mnemonic::Vmovsd | Mnemonic::Vmovd | Mnemonic::Vmovq => (Part::Low, false, true),
        Mnemonic::Vmovlps | Mnemonic::Vmovlpd => (Part::LowHalf, false, true),
        Mnemonic::Vmovhps | Mnemonic::Vmovhpd => (Part::HighHalf, false, true),
        _ => return None,
    };
    // VEX forms take the other half from a separate register.
    let other = if vex && is_load && instruction.op_count() == 3 {
        within(instruction.op1_register(), Register::XMM0, Register::XMM15)?
    } else {
        number
    };
    Some(Source::Vector(Vector { register: number, other, part, vex, aligned }))
}

/// Returns the size of a vector's memory operand in bytes, if the part determines it.
pub(super) const fn size(source: Source) -> Option<u64> {
    match source {
        Source::Vector(Vector { part: Part::Wide, .. }) => Some(32),
        Source::Vector(Vector { part: Part::Whole, .. }) => Some(16),
        Source::Vector(Vector { part: Part::LowHalf | Part::HighHalf, .. }) => Some(8),
        _ => None,
    }
}

/// Returns a vector register's number and width.
pub(super) fn number_of_vector(register: Register) -> Option<(u8, Part)> {
    let wide = within(register, Register::YMM0, Register::YMM15).map(|number| (number, Part::Wide));
    wide.or_else(|| Some((within(register, Register::XMM0, Register::XMM15)?, Part::Whole)))
}

pub(super) fn within(register: Register, first: Register, last: Register) -> Option<u8> {
    let number = (register as usize).checked_sub(first as usize)?;
    (register as usize <= last as usize).then_some(number as u8)
}
