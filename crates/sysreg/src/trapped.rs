//! System registers and instructions, other than the ID registers, whose use at EL1 or EL0 can come
//! to EL2: what each is, what traps it, and how the trap is answered.
//!
//! A register that no row names is undefined: [`Class::Hidden`].

use crate::encoding::SysReg;
use crate::id;

mod debug;
mod rows;
#[cfg(test)]
mod tests;

pub use rows::ROWS;

/// What a trapped register belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Sends a software-generated interrupt. Trapped whenever EL2 takes the physical interrupts.
    Sgi,
    /// The GIC's CPU interface; trapped only while `ICH_HCR_EL2` says so.
    Gic,
    /// The generic timer; trapped only while `CNTHCTL_EL2` says so.
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
    /// The processor's own registers, which the architecture doesn't define.
    ImplementationDefined,
    /// In no row of the table.
    Hidden,
}

/// How an access is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With an undefined instruction exception: for the guest, the register doesn't exist.
    Undefined,
    /// A read gives 0, a write does nothing.
    ReadZeroWriteIgnored,
    /// By the part of the hypervisor that models it.
    Emulate,
}

impl Class {
    /// How accesses to registers of this class are answered.
    #[inline]
    pub const fn answer(self) -> Answer {
        match self {
            Self::Sgi | Self::Gic | Self::Timer | Self::SetWay | Self::Debug | Self::OsLock => Answer::Emulate,
            // ACTLR_EL1 exists on every processor and does nothing that an operating system must
            // have; nobody is at the other end of the channel.
            Self::Actlr | Self::DebugComms => Answer::ReadZeroWriteIgnored,
            // The ID registers tell the guest that it has none of these.
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

/// A register, or registers with adjacent encodings that differ in a number only.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The first encoding.
    pub first: SysReg,
    /// The last encoding; the same as the first for a single register.
    pub last: SysReg,
    /// Its name; `<n>` stands for the number.
    pub name: &'static str,
    /// What it belongs to.
    pub class: Class,
    /// The control that makes its use a trap.
    pub trap: &'static str,
}

/// The row that has `reg`.
#[inline]
pub fn row(reg: SysReg) -> Option<&'static Row> {
    index(reg).and_then(|at| ROWS.get(at))
}

#[inline]
fn index(reg: SysReg) -> Option<usize> {
    // The last row that begins at or before the register is the only one that could have it.
    let at = ROWS.partition_point(|row| row.first <= reg).checked_sub(1)?;
    (reg <= ROWS.get(at)?.last).then_some(at)
}

/// What a trapped register belongs to.
#[inline]
pub fn classify(reg: SysReg) -> Class {
    row(reg).map_or(Class::Hidden, |row| row.class)
}

/// How many [`slot`]s there are.
pub const SLOTS: usize = id::SPACE + ROWS.len() + 1;
const OTHER: usize = SLOTS - 1;
const _: () = assert!(SLOTS <= u16::MAX as usize);

/// A dense number for accounts by register, below [`SLOTS`]: first the ID space by
/// [`SysReg::id_index`], then the rows of [`ROWS`] in order, then one for all other registers.
#[inline]
pub fn slot(reg: SysReg) -> u16 {
    let slot = match reg.id_index() {
        Some(at) => at,
        None => index(reg).map_or(OTHER, |at| id::SPACE + at),
    };
    slot as u16
}

/// What a [`slot`] counts, for reports.
pub fn slot_name(slot: u16) -> &'static str {
    let slot = usize::from(slot);
    match slot.checked_sub(id::SPACE) {
        None => id::REGISTERS.iter().find(|register| register.index() == slot).map_or("reserved ID register", |register| register.name),
        Some(at) => ROWS.get(at).map_or("other register", |row| row.name),
    }
}
