//! Bits of RFLAGS ("EFLAGS Register").

pub(crate) const CF: u64 = 1 << 0;
pub(crate) const PF: u64 = 1 << 2;
pub(crate) const AF: u64 = 1 << 4;
pub(crate) const ZF: u64 = 1 << 6;
pub(crate) const SF: u64 = 1 << 7;
pub(crate) const DF: u64 = 1 << 10;
pub(crate) const OF: u64 = 1 << 11;
pub(crate) const STATUS: u64 = CF | PF | AF | ZF | SF | OF;
