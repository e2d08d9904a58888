//! Bits of IA32_SPEC_CTRL. Each only restricts speculation.

/// Indirect branch restricted speculation.
pub const IBRS: u64 = 1 << 0;
/// Single thread indirect branch predictors.
pub const STIBP: u64 = 1 << 1;
/// Speculative store bypass disable.
pub const SSBD: u64 = 1 << 2;
