//! Debian's packages: kernels, the installer, busybox, Xen and UEFI firmware, fetched through a private apt configuration.
//!
//! Nothing on the system changes: apt gets its own configuration, lists and cache below [`crate::cache::dir`], and checks Debian's
//! signatures with the keys of the package `debian-archive-keyring`. What is taken out of a package is kept, so that apt runs only when
//! something is missing or a week old.

mod apt;
mod deb;
mod drivers;
mod index;
mod item;
mod mirror;
mod modules;
mod own_modules;
mod program;
mod store;
mod tree;
mod version;

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

pub use apt::{Apt, KEYRING_PACKAGE, debian_name};
pub use deb::{Part, Wanted, extract, read};
pub use drivers::{
    Module, bridge_modules, console_modules, drivers, folder_modules, kvm_modules, kvm_modules_of_amd, memory_disk_modules, socket_modules,
    vhost_modules,
};
pub use index::{Package, newest_named};
pub use item::Item;
pub use mirror::{VARIABLE as MIRROR_VARIABLE, mirror, security_mirror};
pub use own_modules::{ipi_module, served_module};
pub use program::programs;
pub use store::{Freshness, directory};
pub use tree::tree;
pub use version::compare as compare_versions;

use crate::config::{Arch, DebianKernel};
use crate::exit;

/// A kernel, with an initial RAM file system if the package contains one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The kernel's file.
    pub kernel: PathBuf,
    /// The initial RAM file system that belongs to it.
    pub initrd: Option<PathBuf>,
    /// Package and version, for the user to read.
    pub about: String,
}

/// An item in the cache.
#[derive(Debug, Serialize)]
pub struct Kept {
    item: &'static str,
    package: String,
    version: String,
}

impl Kept {
    fn new(item: Item, stored: store::Stored) -> Self {
        Self { item: item.name(), package: stored.package, version: stored.version }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<18} {} {}", self.item, self.package, self.version)
    }
}

/// A kernel of Debian for Arm.
///
/// # Errors
/// No mirror; a failed download with nothing in the cache.
pub fn kernel(kernel: DebianKernel, freshness: Freshness) -> Result<Kernel> {
    kernel_for(Arch::Aarch64, kernel, freshness)
}

/// A kernel of Debian.
///
/// # Errors
/// See [`kernel`]; firmware is not available for x86-64.
pub fn kernel_for(arch: Arch, kernel: DebianKernel, freshness: Freshness) -> Result<Kernel> {
    if arch == Arch::X86_64 && kernel == DebianKernel::Edk2 {
        let what = "is for aarch64 only; on x86_64, Stile starts a Linux kernel, or that of the system on the first disk";
        return Err(exit::usage(format!("{} {what}", kernel.word())));
    }
    let (item, _) = Item::of(kernel, arch);
    let stored = store::get(arch, item, freshness)?;
    Ok(Kernel {
        kernel: stored.dir.join(match item {
            Item::Xen => "xen",
            Item::Edk2 => "firmware",
            _ => "kernel",
        }),
        initrd: (item == Item::Installer).then(|| stored.dir.join("initrd")),
        about: format!("{} {}", stored.package, stored.version),
    })
}

/// A board whose device tree Debian has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Board {
    /// The Raspberry Pi 4.
    RaspberryPi4,
    /// Xilinx's ZCU102, revision 1.0.
    Zcu102,
}

/// A board's device tree.
///
/// # Errors
/// No mirror; a failed download with nothing in the cache.
pub fn device_tree(board: Board, freshness: Freshness) -> Result<PathBuf> {
    let name = match board {
        Board::RaspberryPi4 => item::RASPBERRY_PI_4,
        Board::Zcu102 => item::ZCU102,
    };
    Ok(store::get(Arch::Aarch64, Item::DeviceTrees6_1, freshness)?.dir.join(name))
}

/// Checks that the mirror has the packages that [`DebianKernel::Installer`] downloads while it runs: their signed list, and one package of
/// those built for the architecture, which some mirrors lack.
///
/// # Errors
/// No mirror; the list or the package is missing or damaged: the error is apt's message.
pub fn check_installer_packages(arch: Arch) -> Result<()> {
    const PACKAGE: &str = "partman-base";
    let dir = tempfile::tempdir().context("making a temporary directory")?;
    let apt = Apt::of_installer(arch, &directory(arch)?.join("apt"), Item::Installer.suite(), &mirror()?)?;
    let package = newest_named(&apt.packages()?, PACKAGE).with_context(|| format!("its list has no {PACKAGE}"))?;
    apt.download(&package, dir.path()).map(|_| ())
}

/// The statically linked busybox for Arm.
///
/// # Errors
/// No mirror; a failed download with nothing in the cache.
pub fn busybox(freshness: Freshness) -> Result<PathBuf> {
    busybox_for(Arch::Aarch64, freshness)
}

/// The statically linked busybox.
///
/// # Errors
/// See [`busybox`].
pub fn busybox_for(arch: Arch, freshness: Freshness) -> Result<PathBuf> {
    Ok(store::get(arch, Item::Busybox, freshness)?.dir.join("busybox"))
}

/// Xen: a program in the format of a kernel's Image.
///
/// # Errors
/// No mirror; a failed download with nothing in the cache.
pub fn xen(freshness: Freshness) -> Result<PathBuf> {
    Ok(store::get(Arch::Aarch64, Item::Xen, freshness)?.dir.join("xen"))
}

/// The kernel of Debian 13 for x86-64 that can be Xen's first domain.
///
/// # Errors
/// No mirror; a failed download with nothing in the cache.
pub fn dom0_kernel(freshness: Freshness) -> Result<PathBuf> {
    Ok(store::get(Arch::X86_64, Item::General6_12, freshness)?.dir.join("kernel"))
}

/// The kernel of Debian 12 for x86-64 (`kernel`), and the modules of its KVM by their names: a directory.
///
/// # Errors
/// No mirror; a failed download with nothing in the cache.
pub fn kvm_host(freshness: Freshness) -> Result<PathBuf> {
    Ok(store::get(Arch::X86_64, Item::KvmHost6_1, freshness)?.dir)
}

/// The folder with the same kernel, and the modules of its KVM for AMD-V.
///
/// # Errors
/// See [`kvm_host`].
pub fn kvm_host_of_amd(freshness: Freshness) -> Result<PathBuf> {
    Ok(store::get(Arch::X86_64, Item::KvmHostAmd6_1, freshness)?.dir)
}

/// Refetches all items of an architecture that Debian has newer versions of, and returns a line about each.
pub fn refresh(arch: Arch) -> Result<Vec<Kept>> {
    let fetch = |item: &Item| Ok(Kept::new(*item, store::get(arch, *item, Freshness::Check)?));
    Item::all(arch).iter().map(fetch).collect()
}

/// The items for an architecture that are in the cache.
pub fn cached(arch: Arch) -> Vec<Kept> {
    Item::all(arch).iter().filter_map(|item| Some(Kept::new(*item, store::cached(arch, *item)?))).collect()
}
