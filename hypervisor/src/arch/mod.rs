//! The contract that an architecture answers: the names that the rest of Stile uses, and nothing else of `arch/`.
//! [`fake`] answers it on the developer's machine, for tests.

#[cfg(all(target_os = "none", target_arch = "aarch64"))]
pub mod aarch64;
#[cfg(not(target_os = "none"))]
pub mod fake;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
pub mod x86_64;

#[cfg(all(target_os = "none", target_arch = "aarch64"))]
pub use aarch64::*;
#[cfg(not(target_os = "none"))]
pub use fake::*;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
pub use x86_64::*;

#[cfg(all(target_os = "none", not(any(target_arch = "aarch64", target_arch = "x86_64"))))]
compile_error!("Stile has no back end for this architecture");
