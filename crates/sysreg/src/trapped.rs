//! System registers and instructions, other than the ID registers, that can trap from EL1 or EL0
//! to EL2: their class, the trapping control, and the answer.
//!
//! A register without a row is undefined: [`Class::Hidden`].

use crate::encoding::SysReg;
use crate::id;

mod debug;
mod rows;
#[cfg(test)]
mod tests;

pub use rows::ROWS;

/// The class of a trapped register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Sends a software-generated interrupt. Traps whenever physical interrupts are routed to EL2.
    Sgi,
    /// The GIC's CPU interface; traps only by `ICH_HCR_EL2`.
    Gic,
    /// The generic timer; traps only by `CNTHCTL_EL2`.
    Timer,
    /// Cache maintenance by set and way.
    SetWay,
    /// `ACTLR_EL1`.
    Actlr,
    /// Breakpoints, watchpoints and the registers that control them.
    Debug,
    /// OS Lock and OS Double Lock.
    OsLock,
    /// Debug communications channel.
    DebugComms,
    /// Performance monitors.
    Pmu,
    /// Statistical profiling.
    Spe,
    /// Trace buffer.
    Trbe,
    /// Trace unit, its filters, and branch records.
    Trace,
    /// Activity monitors.
    Amu,
    /// Memory partitioning and monitoring.
    Mpam,
    /// Limited ordering regions.
    LoRegion,
    /// Error records.
    Ras,
    /// Memory tagging.
    Mte,
    /// Scalable matrix extension.
    Sme,
    /// Software context numbers.
    Scxtnum,
    /// IMPLEMENTATION DEFINED registers.
    ImplementationDefined,
    /// Registers without a row.
    Hidden,
}

/// The answer to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Inject an undefined instruction exception: the register does not exist for the guest.
    Undefined,
    /// RAZ/WI: read zero, ignore writes.
    ReadZeroWriteIgnored,
    /// The hypervisor emulates the register.
    Emulate,
}

impl Class {
    /// Returns the answer to accesses of this class.
    #[inline]
    pub const fn answer(self) -> Answer {
        match self {
            Self::Sgi | Self::Gic | Self::Timer | Self::SetWay | Self::Debug | Self::OsLock => Answer::Emulate,
            // ACTLR_EL1 exists on every processor without a function that an operating system
            // needs; the debug communications channel has no other end.
            Self::Actlr | Self::DebugComms => Answer::ReadZeroWriteIgnored,
            // Hidden in the ID registers.
            Self::Pmu
            | Self::Spe
            | Self::Trbe
            | Self::Trace
            | Self::Amu
            | Self::Mpam
            | Self::LoRegion
            | Self::Ras
            | Self::Mte
            | Self::Sme
            | Self::Scxtnum
            | Self::ImplementationDefined
            | Self::Hidden => Answer::Undefined,
        }
    }
}

/// A register, or numbered registers with adjacent encodings.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The first encoding.
    pub first: SysReg,
    /// The last encoding; the same as the first for a single register.
    pub last: SysReg,
    /// Its name; `<n>` stands for the number.
    pub name: &'static str,
    /// Its class.
    pub class: Class,
    /// The control that traps it.
    pub trap: &'static str,
}

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
