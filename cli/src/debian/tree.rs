//! Whole packages, unpacked beside each other with the libraries that their programs need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::apt::Apt;
use super::{index, mirror, store};
use crate::config::Arch;
use crate::progress::Task;
use crate::{cache, exit};

/// The release that the packages are of: the stable one.
const SUITE: &str = "trixie";

/// A directory with these packages of Debian's stable release, and the packages of shared libraries that they
/// need, unpacked, in the newest versions at its creation. It is never updated, so that measurements with it
/// are reproducible; to update it, remove it.
///
/// # Errors
/// No mirror; no such package; a failed download.
pub fn tree(arch: Arch, names: &[&str]) -> Result<PathBuf> {
    let debian = store::directory(arch)?;
    let dir = debian.join("trees").join(names.join("+"));
    let _lock = cache::lock(&debian, "fetch")?;
    if dir.exists() {
        return Ok(dir);
    }
    let apt = Apt::new(arch, &debian.join("apt"), SUITE, &mirror::mirror()?)?;
    let packages = index::with_libraries(&apt.packages()?, names)
        .with_context(|| format!("Debian {SUITE} lacks one of the packages {}", names.join(", ")))?;
    // Built aside and moved into place: an interrupted command leaves no partial tree.
    let made = tempfile::tempdir_in(&debian)?;
    let task = Task::start(format!("fetching {}", names.join(", ")));
    for (index, package) in packages.iter().enumerate() {
        task.percent(100.0 * index as f64 / packages.len() as f64);
        let download = tempfile::tempdir_in(&debian)?;
        unpack(&apt.download(package, download.path())?, made.path())?;
    }
    let about: String = packages.iter().map(|package| format!("{} {}\n", package.name, package.version)).collect();
    fs::write(made.path().join("packages"), about).context("writing the list of packages")?;
    fs::create_dir_all(debian.join("trees")).context("making the directory of unpacked packages")?;
    let made = made.keep();
    fs::rename(&made, &dir).with_context(|| format!("moving {} to {}", made.display(), dir.display()))?;
    Ok(dir)
}

/// Unpacks a package.
pub(super) fn unpack(package: &Path, to: &Path) -> Result<()> {
    let status = Command::new("dpkg-deb")
        .arg("--extract")
        .arg(package)
        .arg(to)
        .stdin(Stdio::null())
        .status()
        .map_err(|error| exit::lacking(format!("dpkg-deb can't be run: {error}")))?;
    if !status.success() {
        bail!("dpkg-deb failed on {} ({status})", package.display());
    }
    Ok(())
}
