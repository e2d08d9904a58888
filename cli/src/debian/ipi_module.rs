//! The kernel module `modules/stile-ipi`, built against Debian's headers of the kernel in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use flate2::Crc;

use super::apt::Apt;
use super::drivers::Module;
use super::store::{self, Freshness, Item};
use super::{index, mirror, tree};
use crate::config::{Arch, DebianKernel};
use crate::progress::Task;
use crate::{cache, exit};

/// The packages of the programs that build it.
pub const PACKAGES: &str = "gcc make libelf1";

/// The module's name.
const NAME: &str = "stile_ipi.ko";

/// Its sources.
const SOURCES: [(&str, &str); 2] = [
    ("Kbuild", include_str!("../../../modules/stile-ipi/Kbuild")),
    ("stile_ipi.c", include_str!("../../../modules/stile-ipi/stile_ipi.c")),
];

/// The module for one of Debian's kernels for x86-64; none for kernels that it is not written for.
///
/// # Errors
/// No mirror; a failed download with nothing in the cache; no compiler.
pub fn ipi_module(kernel: DebianKernel, freshness: Freshness) -> Result<Option<Module>> {
    // Later kernels call the functions that send interrupts directly, at addresses that modules can't change.
    if kernel != DebianKernel::V6_1 {
        return Ok(None);
    }
    let stored = store::get(Arch::X86_64, Item::Kernel6_1, freshness)?;
    let release = release(&stored.package).with_context(|| format!("{} is no kernel's package", stored.package))?;
    let debian = store::directory(Arch::X86_64)?;
    let mut sum = Crc::new();
    SOURCES.iter().for_each(|(_, text)| sum.update(text.as_bytes()));
    let file = debian.join("modules").join(format!("{release}-{}-{:08x}", stored.version, sum.sum())).join(NAME);
    if !file.exists() {
        if freshness == Freshness::Cached {
            return Err(exit::lacking(format!("{NAME} is not built yet")));
        }
        let _lock = cache::lock(&debian, "fetch")?;
        if !file.exists() {
            build(&debian, release, &stored.version, &file)?;
        }
    }
    let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
    Ok(Some(Module { name: NAME, bytes }))
}

/// The kernel's release in the name of its package.
fn release(package: &str) -> Option<&str> {
    let rest = package.strip_prefix("linux-image-")?;
    Some(rest.strip_suffix("-unsigned").unwrap_or(rest))
}

fn build(debian: &Path, release: &str, version: &str, to: &Path) -> Result<()> {
    let work = tempfile::tempdir_in(debian)?;
    let headers = headers(debian, release, version, work.path())?;
    let source = work.path().join("stile-ipi");
    fs::create_dir(&source)?;
    for (name, text) in SOURCES {
        fs::write(source.join(name), text)?;
    }
    let task = Task::start(format!("building {NAME} for Linux {release}"));
    let output = Command::new("make")
        .arg("-C")
        .arg(&headers)
        .arg(format!("M={}", source.display()))
        .args(["CC=gcc", "modules"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| exit::lacking(format!("make can't be run ({error}): install the packages {PACKAGES}")))?;
    drop(task);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{NAME} can't be built (are the packages {PACKAGES} installed?):\n{}", errors.trim_end());
    }
    let dir = to.parent().context("the module has no directory")?;
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    // Moved into place when it is complete.
    fs::rename(source.join(NAME), to).with_context(|| format!("moving {NAME} to {}", dir.display()))
}

/// Unpacks a kernel's headers and build programs; returns the directory to build in.
fn headers(debian: &Path, release: &str, version: &str, to: &Path) -> Result<PathBuf> {
    let apt = Apt::new_for(Arch::X86_64, &debian.join("apt"), Item::Kernel6_1.suite(), &mirror::mirror()?)?;
    let packages = apt.packages()?;
    let own = format!("linux-headers-{release}");
    let number = release.strip_suffix("-cloud-amd64").context("the kernel is not one for virtual machines")?;
    let common = format!("linux-headers-{number}-common");
    for name in [&own[..], &common, "linux-kbuild-6.1"] {
        let package = index::newest_named(&packages, name).with_context(|| format!("Debian has no {name}"))?;
        if package.version != version {
            let why = format!("{name} is {}, the kernel in the cache {version}: run `stile fetch`", package.version);
            return Err(exit::lacking(why));
        }
        let download = tempfile::tempdir_in(debian)?;
        tree::unpack(&apt.download(&package, download.path())?, to)?;
    }
    // The packages expect to be installed.
    let sources = to.join("usr/src");
    let makefile = sources.join(&own).join("Makefile");
    fs::write(&makefile, format!("include {}\n", sources.join(&common).join("Makefile").display()))
        .with_context(|| format!("writing {}", makefile.display()))?;
    Ok(sources.join(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_packages() {
        assert_eq!(release("linux-image-6.1.0-50-cloud-amd64-unsigned"), Some("6.1.0-50-cloud-amd64"));
        assert_eq!(release("linux-image-6.1.0-50-cloud-amd64"), Some("6.1.0-50-cloud-amd64"));
        assert_eq!(release("busybox-static"), None);
    }
}
