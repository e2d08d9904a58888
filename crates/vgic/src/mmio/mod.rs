//! Memory-mapped registers.

mod bank;
mod distributor;
pub mod gicv2;
mod redistributor;

use crate::kick::Kick;

/// Size of the distributor's frame in bytes.
pub const GICD_SIZE: u64 = 0x1_0000;

/// Size of a redistributor's two frames (RD_base and SGI_base) in bytes.
pub const GICR_SIZE: u64 = 0x2_0000;

/// The size of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// 8 bits.
    Byte = 0,
    /// 16 bits: no register supports it.
    Half = 1,
    /// 32 bits.
    Word = 2,
    /// 64 bits.
    Double = 3,
}

impl Size {
    /// Decodes the syndrome's SAS field (ESR_EL2.ISS for a Data Abort): 0 to 3.
    #[inline]
    pub const fn from_sas(sas: u32) -> Self {
        match sas & 3 {
            0 => Self::Byte,
            1 => Self::Half,
            2 => Self::Word,
            _ => Self::Double,
        }
    }
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Read {
    /// The value, zero-extended.
    Value(u64),
    /// Part of the value is in list registers of these vCPUs, which must publish first. See the crate's
    /// documentation.
    Stale(Kick),
}
