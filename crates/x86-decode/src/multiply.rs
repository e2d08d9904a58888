//! Multiplication, division and bit scans. Undefined flags are preserved.

use crate::Width;
use crate::operation::{Scan, Sign};
use crate::rflags::{CF, OF, ZF};

/// Returns the low and the high half of a product, and the new RFLAGS: CF and OF are set if the high half is significant.
pub(crate) fn multiply(sign: Sign, left: u64, right: u64, width: Width, flags: u64) -> (u64, u64, u64) {
    let product = match sign {
        Sign::Unsigned => u128::from(left) * u128::from(right),
        Sign::Signed => {
            let wide = |value| i128::from(width.sign_extend(value) as i64);
            (wide(left) * wide(right)) as u128
        }
    };
    let (low, high) = (product as u64 & width.mask(), (product >> width.bits()) as u64 & width.mask());
    let needed = match sign {
        Sign::Unsigned => high != 0,
        Sign::Signed => width.sign_extend(low) as i64 as i128 as u128 != product,
    };
    (low, high, flags & !(CF | OF) | if needed { CF | OF } else { 0 })
}

/// Returns quotient and remainder of `high:low` by `divisor`, or none for #DE.
pub(crate) fn divide(sign: Sign, high: u64, low: u64, divisor: u64, width: Width) -> Option<(u64, u64)> {
    let dividend = u128::from(high) << width.bits() | u128::from(low);
    let (quotient, remainder) = match sign {
        Sign::Unsigned => {
            let divisor = u128::from(divisor);
            let quotient = dividend.checked_div(divisor).filter(|&quotient| quotient <= width.mask().into())?;
            (quotient, dividend % divisor)
        }
        Sign::Signed => {
            let unused = 128 - 2 * width.bits();
            let dividend = (dividend << unused) as i128 >> unused;
            let divisor = i128::from(width.sign_extend(divisor) as i64);
            // -2^127 by -1 overflows.
            let quotient = dividend.checked_div(divisor)?;
            let fits = quotient == i128::from(width.sign_extend(quotient as u64 & width.mask()) as i64);
            if !fits {
                return None;
            }
            (quotient as u128, dividend.wrapping_rem(divisor) as u128)
        }
    };
    Some((quotient as u64 & width.mask(), remainder as u64 & width.mask()))
}

/// Returns the result of a bit scan or count, if the destination is written, and the new RFLAGS.
pub(crate) fn scan(scan: Scan, value: u64, width: Width, flags: u64) -> (Option<u64>, u64) {
    const PF_AF_SF: u64 = 1 << 2 | 1 << 4 | 1 << 7;
    let leading = u64::from(value.leading_zeros() - (64 - width.bits()));
    let trailing = u64::from(value.trailing_zeros().min(width.bits()));
    let zero = |is: bool| if is { ZF } else { 0 };
    match scan {
        Scan::Forward | Scan::Reverse if value == 0 => (None, flags | ZF),
        Scan::Forward => (Some(trailing), flags & !ZF),
        Scan::Reverse => (Some(u64::from(width.bits()) - 1 - leading), flags & !ZF),
        Scan::TrailingZeros | Scan::LeadingZeros => {
            let count = if scan == Scan::LeadingZeros { leading } else { trailing };
            (Some(count), flags & !(CF | ZF) | if value == 0 { CF } else { 0 } | zero(count == 0))
        }
        Scan::Ones => (Some(value.count_ones().into()), flags & !(CF | OF | ZF | PF_AF_SF) | zero(value == 0)),
    }
}
