//! The boundary between what all architectures share and the back end of one: the [`contract`], and the choice of who answers it. Code outside
//! takes nothing of a back end but the names below. [`fake`] answers on the developer's machine, for tests.

pub mod contract;

#[cfg(all(target_os = "none", target_arch = "aarch64"))]
mod aarch64;
#[cfg(not(target_os = "none"))]
pub mod fake;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
mod x86_64;

#[cfg(all(target_os = "none", target_arch = "aarch64"))]
use aarch64 as back_end;
#[cfg(not(target_os = "none"))]
use fake as back_end;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
use x86_64 as back_end;

pub use back_end::{Arch, Cpu, Local, Vcpu, Vm, devices, models};
#[cfg(target_os = "none")]
pub use back_end::{Format, Permissions, Tables};

#[cfg(all(target_os = "none", not(any(target_arch = "aarch64", target_arch = "x86_64"))))]
compile_error!("Stile has no back end for this architecture");
