//! Offsets in a [`Ledger`], for the exit path's assembly.
//!
//! With the address of a ledger in `x0` and the row's number in `w1`, the row's address is
//!
//! ```text
//! ubfiz   x1, x1, #ROW_SHIFT, #ROW_BITS
//! add     x0, x0, #ROWS_OFFSET
//! add     x0, x0, x1
//! ```
//!
//! UBFIZ shifts and masks in one instruction: even an invalid row number stays within the ledger.

use core::mem::{align_of, offset_of, size_of};

use crate::{Ledger, ROWS, Row};

/// Base-2 logarithm of the size of a [`Row`] in bytes.
pub const ROW_SHIFT: usize = 5;
/// Number of bits of a row's number: [`ROWS`] is 2 to this power.
pub const ROW_BITS: usize = ROWS.ilog2() as usize;

/// Offset of the number of exits taken, in a [`Ledger`], in bytes.
pub const TAKEN_OFFSET: usize = offset_of!(Ledger, taken);
/// Offset of row 0 in a [`Ledger`], in bytes.
pub const ROWS_OFFSET: usize = offset_of!(Ledger, rows);

/// Offset of [`Row::count`] in a [`Row`], in bytes.
pub const ROW_COUNT: usize = offset_of!(Row, count);
/// Offset of [`Row::ticks`] in a [`Row`], in bytes.
pub const ROW_TICKS: usize = offset_of!(Row, ticks);
/// Offset of [`Row::min`] in a [`Row`], in bytes.
pub const ROW_MIN: usize = offset_of!(Row, min);
/// Offset of [`Row::max`] in a [`Row`], in bytes.
pub const ROW_MAX: usize = offset_of!(Row, max);

const _: () = assert!(size_of::<Row>() == 1 << ROW_SHIFT);
const _: () = assert!(ROWS == 1 << ROW_BITS);
// A row must not straddle cache lines, and pairs of fields are accessed by one LDP or STP.
const _: () = assert!(ROWS_OFFSET.is_multiple_of(size_of::<Row>()));
const _: () = assert!(align_of::<Ledger>() == 64);
const _: () = assert!(ROW_TICKS == ROW_COUNT + 8 && ROW_MAX == ROW_MIN + 8);
// Immediate offsets of LDR and ADD: at most 12 bits.
const _: () = assert!(TAKEN_OFFSET < 4096 && ROWS_OFFSET < 4096);
