//! The guest that does real work: a Debian kernel, and a minimal root file system in memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use stile_blob::IpiAccess;

use super::libraries;
use super::work::Work;
use stile::config::{Arch, DebianKernel};
use stile::debian::{self, Freshness};
use stile::initramfs::{self, cpio::Archive};
use stile::l2::linux;

/// A guest ready to start under any host.
#[derive(Debug)]
pub struct System {
    /// The kernel's file.
    pub kernel: Vec<u8>,
    /// The root file system, a cpio archive.
    pub initrd: Vec<u8>,
}

/// RAM of the guest, in bytes.
pub const MEMORY: u64 = 512 << 20;

const INIT: &str = include_str!("init.sh");
const COMPILE: &str = include_str!("compile.c");

/// Directories of the root file system; those of programs and libraries are added.
const DIRECTORIES: [&str; 10] = ["dev", "proc", "root", "sys", "tmp", "usr", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin"];

/// The kernel of guests that do real work.
pub const fn kernel(arch: Arch) -> DebianKernel {
    match arch {
        Arch::Aarch64 => DebianKernel::Newest,
        // The module that sends IPIs without exits requires this kernel; KVM's host on a PC has the same one.
        Arch::X86_64 => DebianKernel::V6_1,
    }
}

/// Fetches and builds the guest's files.
///
/// # Errors
/// A file can't be fetched or built, or is not at its expected path.
pub fn build(arch: Arch, kernel: DebianKernel, work: &Work) -> Result<System> {
    let kernel = debian::kernel_for(arch, kernel, Freshness::Weekly)?.kernel;
    let kernel = fs::read(&kernel).with_context(|| format!("reading {}", kernel.display()))?;
    let busybox = debian::busybox_for(arch, Freshness::Weekly)?;
    let busybox = fs::read(&busybox).with_context(|| format!("reading {}", busybox.display()))?;

    let mut archive = Archive::default();
    let mut directories: BTreeSet<PathBuf> = DIRECTORIES.iter().map(PathBuf::from).collect();
    let mut files = Vec::new();
    if !work.packages.is_empty() {
        let tree = debian::tree(arch, work.packages)?;
        let programs = work.programs.iter().map(PathBuf::from);
        for path in programs.chain(libraries::of(arch, &tree, work.programs)?) {
            directories.extend(path.ancestors().skip(1).filter(|path| *path != Path::new("")).map(Path::to_owned));
            let content = fs::read(tree.join(&path)).with_context(|| format!("reading {} of Debian's packages", path.display()))?;
            files.push((path, content));
        }
    }
    // In alphabetical order a directory precedes its contents.
    directories.iter().for_each(|directory| archive.directory(&directory.to_string_lossy()));
    for link in ["bin", "lib", "lib64", "sbin"] {
        archive.link(link, &format!("usr/{link}"));
    }
    // The kernel opens this device before it mounts any file system.
    archive.character_device("dev/console", 0o600, 5, 1);
    archive.file("usr/bin/busybox", 0o755, &busybox);
    archive.link("usr/bin/sh", "busybox");
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("work", 0o644, work.script.as_bytes());
    archive.file("compile.c", 0o644, COMPILE.as_bytes());
    archive.file("pingpong", 0o755, &linux::build_for(arch, "pingpong")?);
    if arch == Arch::X86_64 {
        archive.file("mark", 0o755, &linux::build_for(arch, "mark")?);
        archive.modules(debian::ipi_module(DebianKernel::V6_1, Freshness::Weekly)?.as_slice());
    }
    for (path, content) in &files {
        archive.file(&path.to_string_lossy(), 0o755, content);
    }
    Ok(System { kernel, initrd: archive.finish() })
}

/// Returns the kernel's command line. Arguments after `--` are those of init: the work, the number of its units and, on a PC
/// with direct IPIs, the module that sends them.
pub fn bootargs(arch: Arch, work: &Work, units: u32, ipi: IpiAccess) -> String {
    let module = if arch == Arch::X86_64 && ipi == IpiAccess::Direct { " stile_ipi" } else { "" };
    format!("{} loglevel=4 -- {} {units}{module}", initramfs::kernel_arguments(arch), work.name)
}

/// Returns the line that the guest prints when the work is done.
pub fn confirmation(work: &Work, units: u32) -> String {
    format!("work: did {units} of {}", work.name)
}
