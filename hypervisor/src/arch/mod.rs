//! The boundary between the code that all architectures share and the back end of one: the [`contract`], and the choice
//! of the back end that implements it. Other code uses nothing of a back end but the names below. [`fake`] is the back
//! end for tests on the developer's machine.

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

pub use back_end::{Arch, Cpu, Identity, Local, Vcpu, Vm, devices, models};
#[cfg(target_os = "none")]
pub use back_end::{Format, Permissions, Tables};

#[cfg(all(target_os = "none", not(any(target_arch = "aarch64", target_arch = "x86_64"))))]
compile_error!("Stile has no back end for this architecture");
