//! Initial RAM file systems with busybox and the kernel's modules for a disk.

use std::io::Read;

use anyhow::{Context, Result};
use lzma_rust2::XzReader;

use super::root::Root;
use crate::initramfs::cpio::Archive;

/// The first program of a disk's own.
pub const DISK: &str = include_str!("initrd.sh");

/// Modules for a virtio disk on PCI with an ext4 file system, in the order in which they are loaded. Some kernels have
/// some of them built in.
const MODULES: [&str; 12] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "crc16",
    "libcrc32c",
    "crc32c_generic",
    "mbcache",
    "jbd2",
    "ext4",
];

/// Builds one that runs `init`, a script for busybox's shell; `files` are added at the top.
///
/// # Errors
/// A module can't be decompressed.
pub fn build(busybox: &[u8], root: &Root, init: &str, files: &[(&str, String)]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "mnt", "modules", "proc", "root", "sys"] {
        archive.directory(directory);
    }
    // The kernel opens this device before it mounts any file system.
    archive.character_device("dev/console", 0o600, 5, 1);
    archive.file("bin/busybox", 0o755, busybox);
    archive.file("init", 0o755, init.as_bytes());
    for (number, name) in MODULES.into_iter().enumerate() {
        if let Some(module) = root.module(name) {
            let mut content = Vec::new();
            XzReader::new(module, true).read_to_end(&mut content).with_context(|| format!("decompressing the module {name}"))?;
            // The shell sorts names.
            archive.file(&format!("modules/{number:02}-{name}.ko"), 0o644, &content);
        }
    }
    for (name, content) in files {
        archive.file(name, 0o644, content.as_bytes());
    }
    Ok(archive.finish())
}
