//! The guest, and the disk that it reads.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use super::load::Load;
use crate::full::system::{self, System};
use stile::config::{Arch, DebianKernel};
use stile::debian::{self, Freshness, Module};
use stile::initramfs::{self, cpio::Archive};

/// A kernel whose virtio-pci driver is a module, so that a load inserts it once the disk's server is online. A driver that starts earlier
/// polls the device, with an exit each time: hundreds of thousands, and a different number in each run.
pub const KERNEL: DebianKernel = DebianKernel::V6_1;

/// Size of the disk in bytes: all zeroes, in a sparse file, and so large that the server's page cache has few of the blocks that are read.
const DISK: u64 = 1 << 30;

/// Makes a disk. Its file is removed when the value is dropped.
///
/// # Errors
/// The file can't be made.
pub fn disk() -> Result<NamedTempFile> {
    let disk = NamedTempFile::new().context("making a disk")?;
    disk.as_file().set_len(DISK).context("making a disk")?;
    Ok(disk)
}

/// Files of a load's guest.
#[derive(Debug)]
pub struct Guest {
    /// The kernel, and the file system in memory.
    pub system: System,
    initrd: NamedTempFile,
}

impl Guest {
    /// Fetches and builds the guest of a load.
    ///
    /// # Errors
    /// A file can't be fetched, built or written.
    pub fn build(load: &Load) -> Result<Self> {
        let mut system = system::build(Arch::Aarch64, KERNEL, &load.work)?;
        system.initrd.extend(with_modules(&drivers()?));
        let initrd = file(&system.initrd)?;
        Ok(Self { system, initrd })
    }

    /// The file with its file system.
    pub fn initrd(&self) -> &Path {
        self.initrd.path()
    }
}

/// The drivers of disks and network cards.
pub fn drivers() -> Result<Vec<Module>> {
    debian::drivers(Arch::Aarch64, KERNEL, Freshness::Weekly)
}

/// An archive to follow another one: modules, to be loaded in the order of their names.
pub fn with_modules(modules: &[Module]) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.directory("stile");
    let mut archive = archive.finish();
    archive.extend(initramfs::with_drivers(modules));
    archive
}

/// A file for the emulator.
fn file(content: &[u8]) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new().context("making a file for the emulator")?;
    file.write_all(content).context("writing a file for the emulator")?;
    Ok(file)
}
