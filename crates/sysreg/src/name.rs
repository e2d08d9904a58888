//! Names of registers.

use core::fmt;

use crate::encoding::SysReg;

impl SysReg {
    /// The register's name in the Arm ARM, if a table of this crate has it. Too slow for the exit path.
    pub fn name(self) -> Option<&'static str> {
        crate::id::name(self).or_else(|| crate::trapped::row(self).map(|row| row.name)).or_else(|| crate::register::name(self))
    }
}

/// The name, or the generic assembler form: `S3_0_C1_C2_3`.
impl fmt::Display for SysReg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "S{}_{}_C{}_C{}_{}", self.op0(), self.op1(), self.crn(), self.crm(), self.op2()),
        }
    }
}

impl fmt::Debug for SysReg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
