//! Making an image: the hypervisor, and behind it the virtual machines' kernels, initial RAM file systems and device trees.

pub mod assemble;
mod compression;
pub mod domain;
pub mod dtb;
mod elf;
mod hypervisor;
pub mod kernel;
pub mod layout;
mod pc;
#[cfg(test)]
pub mod tests;

pub use assemble::{Error, Image, Seed, VmFiles, VmPlan, assemble, plan};
pub use compression::Compression;
pub use hypervisor::{Hypervisor, HypervisorError};
pub use kernel::{Format, Kernel, KernelError};

use crate::config::{Arch, VmConfig};

/// Decides what goes where in a virtual machine's RAM, on an architecture.
///
/// # Errors
/// The kernel can't be booted, or there is too little RAM.
pub fn plan_for(arch: Arch, vm: &VmConfig, files: &VmFiles<'_>, seed: Seed) -> Result<VmPlan, Error> {
    match arch {
        Arch::Aarch64 => plan(vm, files, seed),
        Arch::X86_64 => pc::plan(vm, files),
    }
}
