//! Vectors of exceptions.

/// #UD.
pub const UNDEFINED: u64 = 6;
/// #GP.
pub const GENERAL_PROTECTION: u64 = 13;
