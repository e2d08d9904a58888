//! Arithmetic and its flags ("EFLAGS Register", status flags). Undefined flags have the values that processors produce.

use crate::Width;
use crate::operation::{Alu, Unary};
use crate::rflags::{AF, CF, OF, PF, SF, STATUS, ZF};

/// Returns the result of an operation on `left` and `right`, and the new RFLAGS. Operands and result are zero above `width`. The result
/// of a comparison is `left`.
#[inline]
pub(crate) fn binary(alu: Alu, left: u64, right: u64, width: Width, flags: u64) -> (u64, u64) {
    let (result, status) = match alu {
        Alu::Add => add(left, right, 0, width),
        Alu::Adc => add(left, right, flags & CF, width),
        Alu::Sub | Alu::Cmp => subtract(left, right, 0, width),
        Alu::Sbb => subtract(left, right, flags & CF, width),
        Alu::And | Alu::Test => (left & right, 0),
        Alu::Or => (left | right, 0),
        Alu::Xor => (left ^ right, 0),
    };
    let flags = flags & !STATUS | status | of_result(result, width);
    (if matches!(alu, Alu::Cmp | Alu::Test) { left } else { result }, flags)
}

/// Returns the result of an operation on one operand, and the new RFLAGS.
#[inline]
pub(crate) fn unary(unary: Unary, value: u64, width: Width, flags: u64) -> (u64, u64) {
    let (result, status, kept) = match unary {
        Unary::Not => return (!value & width.mask(), flags),
        Unary::Neg => {
            let (result, status) = subtract(0, value, 0, width);
            (result, status, 0)
        }
        // INC and DEC preserve CF.
        Unary::Inc => {
            let (result, status) = add(value, 1, 0, width);
            (result, status & !CF, CF)
        }
        Unary::Dec => {
            let (result, status) = subtract(value, 1, 0, width);
            (result, status & !CF, CF)
        }
    };
    (result, flags & (!STATUS | kept) | status | of_result(result, width))
}

const fn top(width: Width) -> u32 {
    width.bits() - 1
}

/// Returns the flags that depend on the result only: ZF, SF, PF.
#[inline]
pub(crate) const fn of_result(result: u64, width: Width) -> u64 {
    let zero = if result == 0 { ZF } else { 0 };
    let parity = if (result as u8).count_ones().is_multiple_of(2) { PF } else { 0 };
    let sign = (result >> top(width) & 1) * SF;
    zero | parity | sign
}

/// Returns the sum, and CF, AF and OF.
#[inline]
const fn add(left: u64, right: u64, carry: u64, width: Width) -> (u64, u64) {
    let result = left.wrapping_add(right).wrapping_add(carry) & width.mask();
    let carries = left & right | (left | right) & !result;
    let overflow = (left ^ result) & (right ^ result);
    (result, status(carries, left ^ right ^ result, overflow, width))
}

/// Returns the difference, and CF, AF and OF for borrows.
#[inline]
const fn subtract(left: u64, right: u64, borrow: u64, width: Width) -> (u64, u64) {
    let result = left.wrapping_sub(right).wrapping_sub(borrow) & width.mask();
    let borrows = !left & right | (!left | right) & result;
    let overflow = (left ^ right) & (left ^ result);
    (result, status(borrows, left ^ right ^ result, overflow, width))
}

const fn status(carries: u64, half: u64, overflow: u64, width: Width) -> u64 {
    let carry = (carries >> top(width) & 1) * CF;
    let overflow = (overflow >> top(width) & 1) * OF;
    carry | half & AF | overflow
}
