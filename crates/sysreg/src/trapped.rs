//! System registers and instructions, other than the ID registers, that can trap from EL1 or EL0
//! to EL2: their class, the trapping control, and the answer.
//!
//! A register without a row is undefined: [`Class::Hidden`].

use crate::encoding::SysReg;
use crate::id;

mod debug;
mod row;
mod rows;
#[cfg(test)]
mod tests;

pub use row::{Answer, Class, Row};
pub use rows::ROWS;

/// Returns the row of `reg`.
#[inline]
pub fn row(reg: SysReg) -> Option<&'static Row> {
    index(reg).and_then(|at| ROWS.get(at))
}

#[inline]
fn index(reg: SysReg) -> Option<usize> {
    // Only the last row that begins at or before the register can contain it.
    let at = ROWS.partition_point(|row| row.first <= reg).checked_sub(1)?;
    (reg <= ROWS.get(at)?.last).then_some(at)
}

/// Returns the class of a trapped register.
#[inline]
pub fn classify(reg: SysReg) -> Class {
    row(reg).map_or(Class::Hidden, |row| row.class)
}

/// Number of [`slot`]s.
pub const SLOTS: usize = id::SPACE + ROWS.len() + 1;
const OTHER: usize = SLOTS - 1;
const _: () = assert!(SLOTS <= u16::MAX as usize);

/// Returns a dense index for per-register counters, below [`SLOTS`]: first the ID space by
/// [`SysReg::id_index`], then the rows of [`ROWS`] in order, then one for all other registers.
#[inline]
pub fn slot(reg: SysReg) -> u16 {
    let slot = match reg.id_index() {
        Some(at) => at,
        None => index(reg).map_or(OTHER, |at| id::SPACE + at),
    };
    slot as u16
}

/// Returns the name of a [`slot`], for reports.
pub fn slot_name(slot: u16) -> &'static str {
    let slot = usize::from(slot);
    match slot.checked_sub(id::SPACE) {
        None => id::REGISTERS.iter().find(|register| register.index() == slot).map_or("reserved ID register", |register| register.name),
        Some(at) => ROWS.get(at).map_or("other register", |row| row.name),
    }
}
