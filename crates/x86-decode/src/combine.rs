//! Packed integer arithmetic of vector and MMX registers with memory ("PAND", "PADDB/PADDW/PADDD/PADDQ", "PCMPEQB/PCMPEQW/PCMPEQD", ...).

use crate::Width;
use crate::operation::Combine;

/// Returns 64 bits of the result. All operations work within 64-bit lanes.
pub(crate) fn combine(combine: Combine, left: u64, right: u64) -> u64 {
    use Width::{Byte, Dword, Qword, Word};
    let each = |width: Width, of: fn(u64, u64) -> u64| elements(width, left, right, of);
    let signed = |width: Width, of: fn(i64, i64) -> u64| {
        elements(width, left, right, |a, b| of(width.sign_extend(a) as i64, width.sign_extend(b) as i64))
    };
    match combine {
        Combine::And => left & right,
        Combine::AndNot => !left & right,
        Combine::Or => left | right,
        Combine::Xor => left ^ right,
        Combine::AddBytes => each(Byte, u64::wrapping_add),
        Combine::AddWords => each(Word, u64::wrapping_add),
        Combine::AddDwords => each(Dword, u64::wrapping_add),
        Combine::AddQwords => each(Qword, u64::wrapping_add),
        Combine::SubtractBytes => each(Byte, u64::wrapping_sub),
        Combine::SubtractWords => each(Word, u64::wrapping_sub),
        Combine::SubtractDwords => each(Dword, u64::wrapping_sub),
        Combine::SubtractQwords => each(Qword, u64::wrapping_sub),
        Combine::EqualBytes => each(Byte, |a, b| ones_if(a == b)),
        Combine::EqualWords => each(Word, |a, b| ones_if(a == b)),
        Combine::EqualDwords => each(Dword, |a, b| ones_if(a == b)),
        Combine::EqualQwords => each(Qword, |a, b| ones_if(a == b)),
        Combine::GreaterBytes => signed(Byte, |a, b| ones_if(a > b)),
        Combine::GreaterWords => signed(Word, |a, b| ones_if(a > b)),
        Combine::GreaterDwords => signed(Dword, |a, b| ones_if(a > b)),
        Combine::GreaterQwords => signed(Qword, |a, b| ones_if(a > b)),
        Combine::LeastUnsignedBytes => each(Byte, u64::min),
        Combine::MostUnsignedBytes => each(Byte, u64::max),
        Combine::LeastSignedWords => signed(Word, |a, b| a.min(b) as u64),
        Combine::MostSignedWords => signed(Word, |a, b| a.max(b) as u64),
    }
}

/// Applies `of` to each pair of elements of this width. Its arguments are zero-extended; the low bits of its result are used.
fn elements(width: Width, left: u64, right: u64, of: impl Fn(u64, u64) -> u64) -> u64 {
    (0..64).step_by(width.bits() as usize).fold(0, |all, at| {
        let element = |word: u64| word >> at & width.mask();
        all | (of(element(left), element(right)) & width.mask()) << at
    })
}

fn ones_if(condition: bool) -> u64 {
    if condition { u64::MAX } else { 0 }
}
