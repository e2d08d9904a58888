//! Syndromes of trapped instructions in AArch64 state.

use crate::encoding::SysReg;
use bitfield_struct::bitfield;

/// The ISS of a trapped `MSR`, `MRS` or system instruction: Arm ARM, "ISS encoding for an exception
/// from MSR, MRS, or System instruction execution in AArch64 state".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsrIss(u32);

impl MsrIss {
    /// From the ISS field.
    #[inline]
    pub const fn from_bits(iss: u32) -> Self {
        Self(iss)
    }

    /// The register or instruction.
    #[inline]
    pub const fn reg(self) -> SysReg {
        SysReg::from_iss(self.0)
    }

    /// The general register's number, 0 to 31; 31 is the zero register.
    #[inline]
    pub const fn rt(self) -> u8 {
        (self.0 >> 5 & 0x1f) as u8
    }

    /// Whether the access is a read (`MRS`).
    #[inline]
    pub const fn is_read(self) -> bool {
        self.0 & 1 != 0
    }
}

/// The trapped wait instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WfKind {
    /// `WFI`.
    Wfi,
    /// `WFE`.
    Wfe,
    /// `WFIT`.
    Wfit,
    /// `WFET`.
    Wfet,
}

/// The ISS of a trapped wait instruction: Arm ARM, "ISS encoding for an exception from a WF*
/// instruction".
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct WfIss {
    /// Trapped instruction; see [`WfIss::kind`].
    #[bits(2)]
    pub ti: u8,
    /// `rn` is valid.
    pub rv: bool,
    #[bits(2)]
    __: u8,
    /// The register with the timeout, of `WFIT` and `WFET`.
    #[bits(5)]
    pub rn: u8,
    #[bits(10)]
    __: u16,
    /// AArch32 condition code, if `cv`.
    #[bits(4)]
    pub cond: u8,
    /// `cond` is valid.
    pub cv: bool,
    #[bits(7)]
    __: u8,
}

impl WfIss {
    /// Kind of the instruction.
    #[inline]
    pub const fn kind(self) -> WfKind {
        match self.ti() {
            0 => WfKind::Wfi,
            1 => WfKind::Wfe,
            2 => WfKind::Wfit,
            _ => WfKind::Wfet,
        }
    }
}
