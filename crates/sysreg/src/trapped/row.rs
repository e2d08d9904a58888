//! The rows of the table.

use crate::encoding::SysReg;

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

/// Rows of [`Row`]: the five numbers (and the last `CRm` and `op2`, if there are several), name,
/// class, trap.
macro_rules! rows {
    ($($op0:literal $op1:literal $crn:literal $crm:literal $op2:literal
       $(to $last_crm:literal $last_op2:literal)? $name:literal $class:ident $trap:literal;)*) => {
        &[$($crate::trapped::row::registers(
            ($op0, $op1, $crn),
            [($crm, $op2) $(, ($last_crm, $last_op2))?],
            $name,
            $crate::trapped::row::Class::$class,
            $trap,
        )),*]
    };
}
pub(super) use rows;

/// A row for the encodings that begin with `op0`, `op1` and `CRn` as given, from the first to the
/// last of `ends`, which are `CRm` and `op2`.
pub(super) const fn registers<const N: usize>(
    (op0, op1, crn): (u8, u8, u8),
    ends: [(u8, u8); N],
    name: &'static str,
    class: Class,
    trap: &'static str,
) -> Row {
    let (first_crm, first_op2) = ends[0];
    let (last_crm, last_op2) = ends[N - 1];
    Row { first: SysReg::new(op0, op1, crn, first_crm, first_op2), last: SysReg::new(op0, op1, crn, last_crm, last_op2), name, class, trap }
}
