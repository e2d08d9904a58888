//! Decoding of packed integer arithmetic.

use super::vector::{number_of_vector, within};
use crate::operation::{Combine, Part, Source, Vector};
use iced_x86::{Instruction, Mnemonic, Register};

/// Returns the operation and its register.
pub(super) fn of(instruction: &Instruction) -> Option<(Combine, Source)> {
    let (combine, vex) = by_mnemonic(instruction.mnemonic())?;
    if let Some(number) = within(instruction.op0_register(), Register::MM0, Register::MM7) {
        return Some((combine, Source::Mmx(number)));
    }
    let (register, part) = number_of_vector(instruction.op0_register())?;
    // VEX forms have a separate destination, and require no alignment.
    let other = if vex { number_of_vector(instruction.op1_register())?.0 } else { register };
    Some((combine, Source::Vector(Vector { register, other, part, vex, aligned: !vex })))
}

/// Returns the size of the memory operand in bytes.
pub(super) const fn size(source: Source) -> u64 {
    match source {
        Source::Vector(Vector { part: Part::Wide, .. }) => 32,
        Source::Vector(_) => 16,
        _ => 8,
    }
}

/// Returns the operation, and whether the form is VEX-encoded.
fn by_mnemonic(mnemonic: Mnemonic) -> Option<(Combine, bool)> {
    Some(match mnemonic {
        Mnemonic::Pand | Mnemonic::Andps | Mnemonic::Andpd => (Combine::And, false),
        Mnemonic::Pandn | Mnemonic::Andnps | Mnemonic::Andnpd => (Combine::AndNot, false),
        Mnemonic::Por | Mnemonic::Orps | Mnemonic::Orpd => (Combine::Or, false),
        Mnemonic::Pxor | Mnemonic::Xorps | Mnemonic::Xorpd => (Combine::Xor, false),
        Mnemonic::Paddb => (Combine::AddBytes, false),
        Mnemonic::Paddw => (Combine::AddWords, false),
        Mnemonic::Paddd => (Combine::AddDwords, false),
        Mnemonic::Paddq => (Combine::AddQwords, false),
        Mnemonic::Psubb => (Combine::SubtractBytes, false),
        Mnemonic::Psubw => (Combine::SubtractWords, false),
        Mnemonic::Psubd => (Combine::SubtractDwords, false),
        Mnemonic::Psubq => (Combine::SubtractQwords, false),
        Mnemonic::Pcmpeqb => (Combine::EqualBytes, false),
        Mnemonic::Pcmpeqw => (Combine::EqualWords, false),
        Mnemonic::Pcmpeqd => (Combine::EqualDwords, false),
        Mnemonic::Pcmpeqq => (Combine::EqualQwords, false),
        Mnemonic::Pcmpgtb => (Combine::GreaterBytes, false),
        Mnemonic::Pcmpgtw => (Combine::GreaterWords, false),
        Mnemonic::Pcmpgtd => (Combine::GreaterDwords, false),
        Mnemonic::Pcmpgtq => (Combine::GreaterQwords, false),
        Mnemonic::Pminub => (Combine::LeastUnsignedBytes, false),
        Mnemonic::Pmaxub => (Combine::MostUnsignedBytes, false),
        Mnemonic::Pminsw => (Combine::LeastSignedWords, false),
        Mnemonic::Pmaxsw => (Combine::MostSignedWords, false),
        Mnemonic::Vpand | Mnemonic::Vandps | Mnemonic::Vandpd => (Combine::And, true),
        Mnemonic::Vpandn | Mnemonic::Vandnps | Mnemonic::Vandnpd => (Combine::AndNot, true),
        Mnemonic::Vpor | Mnemonic::Vorps | Mnemonic::Vorpd => (Combine::Or, true),
        Mnemonic::Vpxor | Mnemonic::Vxorps | Mnemonic::Vxorpd => (Combine::Xor, true),
        Mnemonic::Vpaddb => (Combine::AddBytes, true),
        Mnemonic::Vpaddw => (Combine::AddWords, true),
        Mnemonic::Vpaddd => (Combine::AddDwords, true),
        Mnemonic::Vpaddq => (Combine::AddQwords, true),
        Mnemonic::Vpsubb => (Combine::SubtractBytes, true),
        Mnemonic::Vpsubw => (Combine::SubtractWords, true),
        Mnemonic::Vpsubd => (Combine::SubtractDwords, true),
        Mnemonic::Vpsubq => (Combine::SubtractQwords, true),
        Mnemonic::Vpcmpeqb => (Combine::EqualBytes, true),
        Mnemonic::Vpcmpeqw => (Combine::EqualWords, true),
        Mnemonic::Vpcmpeqd => (Combine::EqualDwords, true),
        Mnemonic::Vpcmpeqq => (Combine::EqualQwords, true),
        Mnemonic::Vpcmpgtb => (Combine::GreaterBytes, true),
        Mnemonic::Vpcmpgtw => (Combine::GreaterWords, true),
        Mnemonic::Vpcmpgtd => (Combine::GreaterDwords, true),
        Mnemonic::Vpcmpgtq => (Combine::GreaterQwords, true),
        Mnemonic::Vpminub => (Combine::LeastUnsignedBytes, true),
        Mnemonic::Vpmaxub => (Combine::MostUnsignedBytes, true),
        Mnemonic::Vpminsw => (Combine::LeastSignedWords, true),
        Mnemonic::Vpmaxsw => (Combine::MostSignedWords, true),
        _ => return None,
    })
}
