//! Images: the hypervisor, followed by the virtual machines' kernels, initial RAM file systems and device
//! trees.

pub mod assemble;
mod bytes;
mod compression;
pub mod domain;
pub mod dtb;
mod efi;
mod elf;
pub mod fdt;
pub mod file_type;
mod hypervisor;
pub mod kernel;
mod kernel_error;
pub mod layout;
mod pc;
mod pe;
mod release;
mod segment;
mod served;
#[cfg(test)]
mod tests;
mod unpack;

pub use assemble::{Error, Image, Seed, VmFiles, VmPlan, assemble, package, plan};
pub use compression::Compression;
pub use hypervisor::{Hypervisor, HypervisorError};
pub use kernel::{Format, Kernel};
pub use kernel_error::KernelError;
pub use pc::unpack;
pub use release::release;
pub use segment::Segment;

use crate::config::{Arch, VmConfig};
use release::BANNER;

/// The names of the virtual machines in `image`, if it is one of Stile's.
pub fn guests(image: &[u8]) -> Vec<String> {
    let blob = blob(image).and_then(|blob| stile_blob::Blob::parse(blob).ok());
    blob.map(|blob| blob.vms.map(|vm| vm.name.to_owned()).collect()).unwrap_or_default()
}

/// The part of an image of Stile's that begins with its blob.
pub fn blob(image: &[u8]) -> Option<&[u8]> {
    let page = image.chunks(hypervisor::PAGE).position(|page| page.starts_with(&stile_blob::MAGIC))?;
    image.get(page * hypervisor::PAGE..)
}

/// Plans the memory layout of a virtual machine, on an architecture.
///
/// # Errors
/// The kernel can't be booted, or there is too little RAM.
pub fn plan_for(arch: Arch, vm: &VmConfig, files: &VmFiles<'_>, seed: Seed) -> Result<VmPlan, Error> {
    match arch {
        Arch::Aarch64 => plan(vm, files, seed),
        Arch::X86_64 => pc::plan(vm, files),
    }
}

/// Whether a kernel's file is Linux, which would only panic without a root file system. False for one that
/// can't be booted: that is reported with all other reasons.
pub fn is_linux(arch: Arch, file: &[u8], ram: u64) -> bool {
    match arch {
        // Other programs with the header of an arm64 Image lack the banner.
        Arch::Aarch64 => Kernel::recognise(file, ram)
            .is_ok_and(|kernel| kernel.format == Format::Image && kernel.segments.iter().any(|segment| has_banner(kernel.bytes(segment)))),
        Arch::X86_64 => pc::is_linux(file) || has_banner(file),
    }
}

/// Whether it contains Linux's banner.
fn has_banner(bytes: &[u8]) -> bool {
    memchr::memmem::find(bytes, BANNER).is_some()
}
