//! Drivers: modules of Debian's kernels. Which of them are modules differs from kernel to kernel.

use std::fs;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};

use super::deb::Wanted;
use super::item::Item;
use super::modules::{BRIDGE, CONSOLE, DRIVERS, FOLDERS, KVM, MEMORY_DISKS, SOCKETS, VHOST};
use super::store::{self, Freshness};
use crate::config::{Arch, DebianKernel};
use crate::exit;

/// A module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its name, with the ending `.ko`.
    pub name: &'static str,
    /// The file, decompressed.
    pub bytes: Vec<u8>,
}

/// The modules of KVM of one of Debian's kernels for x86-64, in the order in which they can be loaded. None for other kernels.
///
/// # Errors
/// See [`drivers`].
pub fn kvm_modules(kernel: DebianKernel, freshness: Freshness) -> Result<Vec<Module>> {
    if kernel != DebianKernel::V6_1 {
        return modules(Arch::X86_64, KVM, kernel, freshness);
    }
    those_in(&store::get(Arch::X86_64, Item::KvmHost6_1, freshness)?.dir, &KVM_MODULES)
}

/// Their names.
const KVM_MODULES: [&str; 3] = ["irqbypass.ko", "kvm.ko", "kvm-intel.ko"];

/// The modules of KVM for AMD-V of the kernel of Debian 12, in the order in which they can be loaded.
///
/// # Errors
/// See [`drivers`].
pub fn kvm_modules_of_amd(freshness: Freshness) -> Result<Vec<Module>> {
    const NAMES: [&str; 5] = ["irqbypass.ko", "rng-core.ko", "ccp.ko", "kvm.ko", "kvm-amd.ko"];
    those_in(&store::get(Arch::X86_64, Item::KvmHostAmd6_1, freshness)?.dir, &NAMES)
}

/// Those of the modules with these names that a folder has.
fn those_in(folder: &Path, names: &[&'static str]) -> Result<Vec<Module>> {
    let present = names.iter().filter(|name| folder.join(name).exists());
    present.map(|name| Ok(Module { name, bytes: read(&folder.join(name))? })).collect()
}

/// The drivers of PCI functions that are modules of one of Debian's kernels, in the order in which they can be loaded. None for other
/// kernels.
///
/// # Errors
/// No mirror; a failed download with nothing in the cache; a module can't be decompressed.
pub fn drivers(arch: Arch, kernel: DebianKernel, freshness: Freshness) -> Result<Vec<Module>> {
    modules(arch, DRIVERS, kernel, freshness)
}

/// The modules of one of Debian's kernels for bridges and TAP devices, in the order in which they can be loaded. None for other kernels.
///
/// # Errors
/// See [`drivers`].
pub fn bridge_modules(arch: Arch, kernel: DebianKernel, freshness: Freshness) -> Result<Vec<Module>> {
    modules(arch, BRIDGE, kernel, freshness)
}

/// The modules of vhost-net of one of Debian's kernels for Arm, by which KVM's host serves its guests' network cards; they are loaded after
/// those for bridges. None for other kernels.
///
/// # Errors
/// See [`drivers`].
pub fn vhost_modules(kernel: DebianKernel, freshness: Freshness) -> Result<Vec<Module>> {
    modules(Arch::Aarch64, VHOST, kernel, freshness)
}

/// The modules of one of Debian's kernels for consoles over virtio. None for other kernels.
///
/// # Errors
/// See [`drivers`].
pub fn console_modules(arch: Arch, kernel: DebianKernel, freshness: Freshness) -> Result<Vec<Module>> {
    modules(arch, CONSOLE, kernel, freshness)
}

/// The modules of one of Debian's kernels for sockets between VMs, in the order in which they can be loaded. None for other kernels.
///
/// # Errors
/// See [`drivers`].
pub fn socket_modules(arch: Arch, kernel: DebianKernel, freshness: Freshness) -> Result<Vec<Module>> {
    modules(arch, SOCKETS, kernel, freshness)
}

/// The modules of one of Debian's kernels for shared folders, in the order in which they can be loaded. None for kernels without the file
/// system.
///
/// # Errors
/// See [`drivers`].
pub fn folder_modules(arch: Arch, kernel: DebianKernel, freshness: Freshness) -> Result<Vec<Module>> {
    modules(arch, FOLDERS, kernel, freshness)
}

/// The modules of one of Debian's kernels for disks in memory, in the order in which they can be loaded. None for other kernels.
///
/// # Errors
/// See [`drivers`].
pub fn memory_disk_modules(arch: Arch, kernel: DebianKernel, freshness: Freshness) -> Result<Vec<Module>> {
    modules(arch, MEMORY_DISKS, kernel, freshness)
}

/// Those of the `wanted` modules that a kernel has as such.
fn modules(arch: Arch, wanted: &[Wanted], kernel: DebianKernel, freshness: Freshness) -> Result<Vec<Module>> {
    let (image, Some(item)) = Item::of(kernel, arch) else { return Ok(Vec::new()) };
    let mut stored = store::get(arch, item, freshness)?;
    let mut kernel = store::get(arch, image, freshness)?;
    if stored.version != kernel.version && freshness != Freshness::Cached {
        // They were fetched at different times.
        kernel = store::get(arch, image, Freshness::Check)?;
        stored = store::get(arch, item, Freshness::Check)?;
    }
    if stored.version != kernel.version {
        return Err(exit::lacking(format!(
            "the drivers in the cache are of {} {}, the kernel is {}: run `stile fetch`",
            stored.package, stored.version, kernel.version
        )));
    }
    let present = wanted.iter().filter(|module| stored.dir.join(module.name).exists());
    present.map(|module| Ok(Module { name: module.name, bytes: read(&stored.dir.join(module.name))? })).collect()
}

/// A module's file, decompressed if it is compressed.
fn read(path: &Path) -> Result<Vec<u8>> {
    const XZ: &[u8] = b"\xfd7zXZ\0";
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    if !bytes.starts_with(XZ) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    lzma_rust2::XzReader::new(&bytes[..], false).read_to_end(&mut plain).with_context(|| format!("decompressing {}", path.display()))?;
    Ok(plain)
}
