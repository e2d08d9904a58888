//! The rows of the table of system registers.

use super::trap::{self, Trap};
use super::{Control, Controls};
use stile_sysreg::SysReg;

/// A pair of fine-grained trap registers, or HFGITR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FineGroup {
    /// HFGRTR_EL2 for reads, HFGWTR_EL2 for writes.
    Register,
    /// HFGITR_EL2.
    Instruction,
    /// HDFGRTR_EL2 for reads, HDFGWTR_EL2 for writes.
    Debug,
}

impl FineGroup {
    /// The control for reads, and that for writes.
    pub const fn controls(self) -> [Control; 2] {
        match self {
            Self::Register => [Control::Hfgrtr, Control::Hfgwtr],
            Self::Instruction => [Control::Hfgitr; 2],
            Self::Debug => [Control::Hdfgrtr, Control::Hdfgwtr],
        }
    }
}

/// A bit in the fine-grained trap registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fine {
    /// The group.
    pub group: FineGroup,
    /// The bit number.
    pub bit: u32,
    /// Whether it traps when 0 (its name begins with `n`).
    pub inverted: bool,
}

impl Fine {
    /// Whether L1 has enabled the trap.
    pub(super) fn holds(self, is_read: bool, is_no_xs: bool, controls: &impl Controls) -> bool {
        if is_no_xs && controls.get(Control::Hcrx) & trap::HCRX_FGTNXS != 0 {
            return false;
        }
        let [reads, writes] = self.group.controls();
        let control = if is_read { reads } else { writes };
        (controls.get(control) >> self.bit & 1 == 0) == self.inverted
    }
}

/// A register or instruction, or several with adjacent encodings and equal traps.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The first encoding.
    pub first: SysReg,
    /// The last encoding; equal to the first for a single one.
    pub last: SysReg,
    /// Its name; `<n>` stands for a number, `<*>` for other variations.
    pub name: &'static str,
    /// Traps, any of which traps it.
    pub coarse: &'static [Trap],
    /// The fine-grained trap that traps it, too.
    pub fine: Option<Fine>,
}

/// Rows of [`Row`]: the five numbers (and the last `CRn`, `CRm` and `op2`, if there are several), name, traps, bit of
/// the fine-grained trap registers.
macro_rules! rows {
    ($($op0:literal $op1:literal $crn:literal $crm:literal $op2:literal
       $(to $last_crn:literal $last_crm:literal $last_op2:literal)? $name:literal
       [$($trap:ident)*] $($group:ident $(!$inverted:literal)? $($bit:literal)?)?;)*) => {
        &[$($crate::forward::row::Row {
            first: stile_sysreg::SysReg::new($op0, $op1, $crn, $crm, $op2),
            last: {
                #[allow(unused_variables, reason = "hidden by the last encoding, if there is one")]
                let (crn, crm, op2) = ($crn, $crm, $op2);
                $(let (crn, crm, op2) = ($last_crn, $last_crm, $last_op2);)?
                stile_sysreg::SysReg::new($op0, $op1, crn, crm, op2)
            },
            name: $name,
            coarse: &[$($crate::forward::trap::$trap),*],
            fine: $crate::forward::row::rows!(@fine $($group $(!$inverted)? $($bit)?)?),
        }),*]
    };
    (@fine) => { None };
    (@fine register $($bit:tt)*) => { $crate::forward::row::rows!(@bit Register $($bit)*) };
    (@fine instruction $($bit:tt)*) => { $crate::forward::row::rows!(@bit Instruction $($bit)*) };
    (@fine debug $($bit:tt)*) => { $crate::forward::row::rows!(@bit Debug $($bit)*) };
    (@bit $group:ident ! $bit:literal) => {
        Some($crate::forward::row::Fine { group: $crate::forward::row::FineGroup::$group, bit: $bit, inverted: true })
    };
    (@bit $group:ident $bit:literal) => {
        Some($crate::forward::row::Fine { group: $crate::forward::row::FineGroup::$group, bit: $bit, inverted: false })
    };
}
pub(super) use rows;
