//! Limits that a soak run holds exits to.

/// The most instructions that an exit may take.
pub const LONGEST_EXIT: u64 = 200_000;
