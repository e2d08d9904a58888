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
pub use pc::plan as plan_pc;
