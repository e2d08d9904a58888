//! Flags in RFLAGS.

/// Carry flag.
pub const CF: u64 = 1;
/// Zero flag.
pub const ZF: u64 = 1 << 6;
/// Overflow flag.
pub const OF: u64 = 1 << 11;
/// Direction flag.
pub const DF: u64 = 1 << 10;
/// All status flags.
pub const ALL_FLAGS: u64 = 0x8d5;
/// All status flags without AF.
pub const NO_AF: u64 = 0x8c5;
