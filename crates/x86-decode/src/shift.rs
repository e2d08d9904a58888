//! Shifts and rotates ("SAL/SAR/SHL/SHR—Shift", "RCL/RCR/ROL/ROR—Rotate", "SHLD", "SHRD"). An undefined OF is computed as for a count of
//! 1; an undefined AF is clear.

use crate::Width;
use crate::alu::of_result;
use crate::operation::{Direction, Shift};
use crate::rflags::{CF, OF, STATUS};

/// Masks a count to its significant bits.
const fn masked(count: u64, width: Width) -> u32 {
    (count & if matches!(width, Width::Qword) { 0x3f } else { 0x1f }) as u32
}

/// Combines CF and OF; each argument is 0 or 1.
const fn carry_and_overflow(carry: u64, overflow: u64) -> u64 {
    (carry * CF) | (overflow * OF)
}

const fn top_of(value: u64, width: Width) -> u64 {
    value >> (width.bits() - 1) & 1
}

/// Returns `value` shifted by `count`, and the new RFLAGS. `value` and the result are zero above `width`.
pub(crate) fn shift(shift: Shift, value: u64, count: u64, width: Width, flags: u64) -> (u64, u64) {
    let count = masked(count, width);
    if count == 0 {
        return (value, flags);
    }
    match shift {
        Shift::Left | Shift::Right | Shift::RightSigned => shifted(shift, value, count, width, flags),
        _ => rotated(shift, value, count, width, flags),
    }
}

fn shifted(shift: Shift, value: u64, count: u32, width: Width, flags: u64) -> (u64, u64) {
    // 128 bits hold the carry and the bits shifted in.
    let (result, carry, overflow) = match shift {
        Shift::Left => {
            let all = u128::from(value) << count;
            let (result, carry) = (all as u64 & width.mask(), (all >> width.bits()) as u64 & 1);
            (result, carry, carry ^ top_of(result, width))
        }
        Shift::Right => {
            let result = value.checked_shr(count).unwrap_or(0);
            (result, value.checked_shr(count - 1).unwrap_or(0) & 1, top_of(result << 1, width) ^ top_of(result, width))
        }
        _ => {
            let signed = i128::from(width.sign_extend(value) as i64);
            ((signed >> count) as u64 & width.mask(), (signed >> (count - 1)) as u64 & 1, 0)
        }
    };
    (result, flags & !STATUS | carry_and_overflow(carry, overflow) | of_result(result, width))
}

fn rotated(shift: Shift, value: u64, count: u32, width: Width, flags: u64) -> (u64, u64) {
    let bits = width.bits();
    let through = matches!(shift, Shift::RotateCarryLeft | Shift::RotateCarryRight);
    let ring = if through { bits + 1 } else { bits };
    let by = count % ring;
    let left = match shift {
        Shift::RotateLeft | Shift::RotateCarryLeft => by,
        _ => (ring - by) % ring,
    };
    let all = if through { u128::from(value) | u128::from(flags & CF) << bits } else { value.into() };
    let turned = if left == 0 { all } else { all << left | all >> (ring - left) };
    let result = turned as u64 & width.mask();
    let carry = match shift {
        Shift::RotateLeft => result & 1,
        Shift::RotateRight => top_of(result, width),
        _ => (turned >> bits) as u64 & 1,
    };
    let overflow = match shift {
        Shift::RotateLeft | Shift::RotateCarryLeft => top_of(result, width) ^ carry,
        _ => top_of(result, width) ^ top_of(result << 1, width),
    };
    (result, flags & !(CF | OF) | carry_and_overflow(carry, overflow))
}

/// SHLD and SHRD: returns `value` shifted by `count` and filled with bits of `more`, and the new RFLAGS.
pub(crate) fn double(direction: Direction, value: u64, more: u64, count: u64, width: Width, flags: u64) -> (u64, u64) {
    let count = masked(count, width);
    if count == 0 {
        return (value, flags);
    }
    let bits = width.bits();
    let (value_wide, more_wide) = (u128::from(value), u128::from(more));
    // A count above 16 is undefined for 16-bit operands; processors shift `more` in repeatedly.
    let (result, carry) = match direction {
        Direction::Left => {
            let all = value_wide << bits | more_wide;
            let all = if count > bits { all << bits | more_wide } else { all };
            let taken = if count > bits { 2 * bits } else { bits };
            ((all >> (taken - count)) as u64, (all >> (taken + bits - count)) as u64 & 1)
        }
        Direction::Right => {
            let all = more_wide << bits | value_wide;
            let all = if count > bits { more_wide << bits | more_wide } else { all };
            let count = if count > bits { count - bits } else { count };
            ((all >> count) as u64, (all >> (count - 1)) as u64 & 1)
        }
    };
    let result = result & width.mask();
    let overflow = top_of(result ^ value, width);
    (result, flags & !STATUS | carry_and_overflow(carry, overflow) | of_result(result, width))
}
