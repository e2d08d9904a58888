//! Images: the hypervisor, followed by the virtual machines' kernels, initial RAM file systems and device
//! trees.

pub mod assemble;
mod efi;
mod hypervisor;
mod release;
#[cfg(test)]
mod tests;
mod unpack;

pub use assemble::{Error, Image, Seed, VmFiles, VmPlan, assemble, package, plan, plan_for};
pub use hypervisor::{Hypervisor, HypervisorError};
pub use release::release;
pub use stile_guest_image::{Compression, Format, GuestDomain, Kernel, KernelError, Segment, domain, dtb, fdt, file_type, layout, pc};
pub use unpack::{UNPACKING, unpack};

use crate::config::Arch;
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

/// Whether a kernel's file is Linux, which would only panic without a root file system. False for one that
/// can't be booted: that is reported with all other reasons.
pub fn is_linux(arch: Arch, file: &[u8], ram: u64) -> bool {
    match arch {
        // Other programs with the header of an arm64 Image lack the banner.
        Arch::Aarch64 => Kernel::recognise(file, ram, &UNPACKING)
            .is_ok_and(|kernel| kernel.format == Format::Image && kernel.segments.iter().any(|segment| has_banner(kernel.bytes(segment)))),
        Arch::X86_64 => pc::is_linux(file) || has_banner(file),
    }
}

/// Whether it contains Linux's banner.
fn has_banner(bytes: &[u8]) -> bool {
    memchr::memmem::find(bytes, BANNER).is_some()
}
