//! The guest that works: one of Debian's kernels, and a root file system in memory with just what the work needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::libraries;
use super::work::Work;
use stile::config::DebianKernel;
use stile::debian::{self, Freshness};
use stile::initramfs::cpio::Archive;
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
const DIRECTORIES: [&str; 9] = ["dev", "proc", "root", "sys", "tmp", "usr", "usr/bin", "usr/lib", "usr/sbin"];

/// Fetches and builds what the work needs.
///
/// # Errors
/// Something can't be fetched or built, or is not where it is expected.
pub fn build(work: &Work) -> Result<System> {
    let kernel = debian::kernel(DebianKernel::Newest, Freshness::Weekly)?.kernel;
    let kernel = fs::read(&kernel).with_context(|| format!("reading {}", kernel.display()))?;
    let busybox = debian::busybox(Freshness::Weekly)?;
    let busybox = fs::read(&busybox).with_context(|| format!("reading {}", busybox.display()))?;

    let mut archive = Archive::default();
    let mut directories: BTreeSet<PathBuf> = DIRECTORIES.iter().map(PathBuf::from).collect();
    let mut files = Vec::new();
    if !work.packages.is_empty() {
        let tree = debian::tree(work.packages)?;
        let programs = work.programs.iter().map(PathBuf::from);
        for path in programs.chain(libraries::of(&tree, work.programs)?) {
            directories.extend(path.ancestors().skip(1).filter(|path| *path != Path::new("")).map(Path::to_owned));
            let content = fs::read(tree.join(&path)).with_context(|| format!("reading {} of Debian's packages", path.display()))?;
            files.push((path, content));
        }
    }
    // In alphabetical order a directory precedes its contents.
    directories.iter().for_each(|directory| archive.directory(&directory.to_string_lossy()));
    for link in ["bin", "lib", "sbin"] {
        archive.link(link, &format!("usr/{link}"));
    }
    // The kernel opens this one before anything is mounted.
    archive.character_device("dev/console", 0o600, 5, 1);
    archive.file("usr/bin/busybox", 0o755, &busybox);
    archive.link("usr/bin/sh", "busybox");
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("work", 0o644, work.script.as_bytes());
    archive.file("compile.c", 0o644, COMPILE.as_bytes());
    archive.file("pingpong", 0o755, &linux::build("pingpong")?);
    for (path, content) in &files {
        archive.file(&path.to_string_lossy(), 0o755, content);
    }
    Ok(System { kernel, initrd: archive.finish() })
}

/// The kernel's command line for `units` units of the work. Arguments after the dashes are init's.
pub fn bootargs(work: &Work, units: u32) -> String {
    format!("console=ttyAMA0 panic=-1 loglevel=4 -- {} {units}", work.name)
}

/// Returns the line that the guest prints when the work is done.
pub fn confirmation(work: &Work, units: u32) -> String {
    format!("work: did {units} of {}", work.name)
}
