//! Debug and trace registers: `op0` 2.

use super::row::{Class, Row, registers, rows};
use crate::encoding::SysReg;

/// Debug registers that are there once.
pub(super) const CONTROL: &[Row] = rows! {
    2 0 0 0 2   "OSDTRRX_EL1" DebugComms "MDCR_EL2.TDA";
    2 0 0 2 0   "MDCCINT_EL1" DebugComms "MDCR_EL2.TDA";
    2 0 0 2 2   "MDSCR_EL1" Debug "MDCR_EL2.TDA";
    2 0 0 3 2   "OSDTRTX_EL1" DebugComms "MDCR_EL2.TDA";
    2 0 0 6 2   "OSECCR_EL1" Debug "MDCR_EL2.TDA";
    2 0 1 0 0   "MDRAR_EL1" Debug "MDCR_EL2.TDRA";
    2 0 1 0 4   "OSLAR_EL1" OsLock "MDCR_EL2.TDOSA";
    2 0 1 1 4   "OSLSR_EL1" OsLock "MDCR_EL2.TDOSA";
    2 0 1 3 4   "OSDLR_EL1" OsLock "MDCR_EL2.TDOSA";
    2 0 1 4 4   "DBGPRCR_EL1" OsLock "MDCR_EL2.TDOSA";
    2 0 7 8 6   "DBGCLAIMSET_EL1" Debug "MDCR_EL2.TDA";
    2 0 7 9 6   "DBGCLAIMCLR_EL1" Debug "MDCR_EL2.TDA";
    2 0 7 14 6  "DBGAUTHSTATUS_EL1" Debug "MDCR_EL2.TDA";
    2 3 0 1 0   "MDCCSR_EL0" DebugComms "MDCR_EL2.TDA";
    2 3 0 4 0   "DBGDTR_EL0" DebugComms "MDCR_EL2.TDA";
    2 3 0 5 0   "DBGDTR<n>X_EL0" DebugComms "MDCR_EL2.TDA";
};

/// Breakpoints and watchpoints.
macro_rules! comparators {
    ($($n:literal)*) => {
        &[$(
            comparator($n, 4, concat!("DBGBVR", $n, "_EL1")),
            comparator($n, 5, concat!("DBGBCR", $n, "_EL1")),
            comparator($n, 6, concat!("DBGWVR", $n, "_EL1")),
            comparator($n, 7, concat!("DBGWCR", $n, "_EL1")),
        )*]
    };
}
pub(super) const COMPARATORS: &[Row] = comparators!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

const fn comparator(n: u8, op2: u8, name: &'static str) -> Row {
    let class = Class::Debug;
    registers((2, 0, 0), [(n, op2)], name, class, "MDCR_EL2.TDA")
}

/// All of `op1` 1.
pub(super) const TRACE: &[Row] = &[
    Row { first: SysReg::new(2, 1, 0, 0, 0), last: SysReg::new(2, 1, 7, 15, 7), name: "TRC<n>", class: Class::Trace, trap: "CPTR_EL2.TTA" },
    Row {
        first: SysReg::new(2, 1, 8, 0, 0),
        last: SysReg::new(2, 1, 9, 15, 7),
        name: "BRB<n>_EL1",
        class: Class::Trace,
        trap: "HDFGRTR_EL2.nBRBDATA",
    },
];
