//! Files out of a Debian package.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::exit;

/// A file to extract from a package.
pub struct Wanted {
    /// Whether a path in the package (without `./`) is the wanted one.
    pub is: fn(&str) -> bool,
    /// The name to store it under.
    pub name: &'static str,
    /// Whether it is a mistake that the package doesn't have it.
    pub required: bool,
}

/// An archive in a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The files to install.
    Files,
    /// Control information: fields, maintainer scripts, lists.
    Control,
}

/// Calls `take` with an archive of `package`, uncompressed, and returns its result.
///
/// # Errors
/// `take` or dpkg-deb fails.
pub fn read<T>(package: &Path, part: Part, take: impl FnOnce(&mut dyn io::Read) -> Result<T>) -> Result<T> {
    let option = match part {
        Part::Files => "--fsys-tarfile",
        Part::Control => "--ctrl-tarfile",
    };
    let mut child = Command::new("dpkg-deb")
        .arg(option)
        .arg(package)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| exit::lacking(format!("dpkg-deb can't be run: {error}")))?;
    let mut stdout = child.stdout.take().context("dpkg-deb has no output")?;
    let taken = take(&mut stdout);
    // The whole archive is read, so that dpkg-deb never writes into a closed pipe.
    let rest = io::copy(&mut stdout, &mut io::sink());
    let status = child.wait().context("waiting for dpkg-deb")?;
    let taken = taken.with_context(|| format!("reading {}", package.display()))?;
    rest.with_context(|| format!("reading {}", package.display()))?;
    if !status.success() {
        bail!("dpkg-deb failed on {} ({status})", package.display());
    }
    Ok(taken)
}

/// Extracts the `wanted` files of `package` into the directory `to`.
///
/// # Errors
/// A wanted file is not in the package; dpkg-deb fails.
pub fn extract(package: &Path, wanted: &[Wanted], to: &Path) -> Result<()> {
    let taken = read(package, Part::Files, |archive| take(archive, wanted, to))?;
    match wanted.iter().find(|file| file.required && !taken.contains(&to.join(file.name))) {
        Some(missing) => bail!("{} holds no {}", package.display(), missing.name),
        None => Ok(()),
    }
}

fn take(archive: impl io::Read, wanted: &[Wanted], to: &Path) -> Result<Vec<PathBuf>> {
    let mut taken = Vec::new();
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let path = path.trim_start_matches("./");
        let Some(file) = wanted.iter().find(|file| (file.is)(path)) else { continue };
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let target = to.join(file.name);
        io::copy(&mut entry, &mut File::create(&target)?)?;
        taken.push(target);
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_files_are_extracted_and_links_are_not() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut add = |path: &str, kind: tar::EntryType, data: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, data).unwrap();
        };
        add("./boot/vmlinuz-1", tar::EntryType::Regular, b"kernel");
        add("./boot/other", tar::EntryType::Regular, b"other");
        add("./boot/vmlinuz-old", tar::EntryType::Symlink, b"");
        let archive = builder.into_inner().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let wanted = [Wanted { is: |path| path.starts_with("boot/vmlinuz-"), name: "kernel", required: true }];
        let taken = take(archive.as_slice(), &wanted, dir.path()).unwrap();
        assert_eq!(taken, [dir.path().join("kernel")]);
        assert_eq!(std::fs::read(&taken[0]).unwrap(), b"kernel");
    }
}
