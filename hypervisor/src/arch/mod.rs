//! The contract that an architecture answers: the names that the rest of Stile uses, and nothing else of `arch/`.

#[cfg(target_arch = "aarch64")]
pub mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
