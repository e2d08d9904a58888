//! The root file system as a tar archive: the files of Debian's packages, and further ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use data_encoding::HEXLOWER;
use md5::{Digest, Md5};
use tar::{Archive, Builder, EntryType, Header};

use super::dpkg::{self, Control, Database};
use super::settings::Setting;
use crate::config::Arch;
use crate::debian::{self, Part};

/// Top-level directories that are links into `usr`. Packages name files by either path.
const fn merged_directories(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::Aarch64 => &["bin", "lib", "sbin"],
        Arch::X86_64 => &["bin", "lib", "lib64", "sbin"],
    }
}

/// An archive that is being written.
pub struct Root {
    arch: Arch,
    archive: Builder<BufWriter<File>>,
    /// Paths in the archive that are not directories, and the directories.
    paths: BTreeSet<String>,
    database: Database,
    preinst: Vec<String>,
    kernel: Option<Kernel>,
    modules: BTreeMap<String, Vec<u8>>,
}

/// The kernel among the packages.
pub struct Kernel {
    /// Its release, such as `6.12.107+deb13-cloud-arm64`.
    pub release: String,
    /// Its file.
    pub image: Vec<u8>,
}

impl Root {
    /// Creates the archive at `path`, for packages of an architecture.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn create(path: &Path, arch: Arch) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
        let mut root = Self {
            arch,
            archive: Builder::new(BufWriter::with_capacity(1 << 20, file)),
            paths: BTreeSet::new(),
            database: Database::default(),
            preinst: Vec::new(),
            kernel: None,
            modules: BTreeMap::new(),
        };
        root.directory("usr", 0o755)?;
        for name in merged_directories(arch) {
            root.directory(&format!("usr/{name}"), 0o755)?;
            root.link(name, &format!("usr/{name}"))?;
        }
        Ok(root)
    }

    /// Adds a package's files, and registers it as unpacked.
    ///
    /// # Errors
    /// The package can't be read, or contains a file of an earlier one.
    pub fn package(&mut self, package: &Path) -> Result<()> {
        let (control, scripts) = debian::read(package, Part::Control, |archive| control_files(archive))?;
        let stem = control.file_stem(debian::debian_name(self.arch));
        let (list, hashes) = debian::read(package, Part::Files, |archive| self.files_of(&control, archive))?;
        for ControlFile { name, mode, content } in &scripts {
            self.file(&format!("{}/info/{stem}.{name}", dpkg::DIRECTORY), *mode, content)?;
            if name == "preinst" {
                self.preinst.push(stem.clone());
            }
        }
        self.file(&format!("{}/info/{stem}.list", dpkg::DIRECTORY), 0o644, list.as_bytes())?;
        self.database.add(&control, |path| hashes.get(path).cloned());
        Ok(())
    }

    /// Copies a package's files. Returns their paths, and the MD5 sums of its configuration files.
    fn files_of(&mut self, control: &Control, archive: &mut dyn Read) -> Result<(String, BTreeMap<String, String>)> {
        let (mut list, mut hashes) = (String::new(), BTreeMap::new());
        let mut archive = Archive::new(archive);
        for entry in archive.entries()? {
            let mut entry = entry?;
            let original = text(&entry.path()?)?;
            list += &if original.is_empty() { "/.\n".to_owned() } else { format!("/{original}\n") };
            let path = merged(self.arch, &original);
            // The root, and the directories that are links here.
            if path.is_empty() || merged_directories(self.arch).contains(&&original[..]) {
                continue;
            }
            let mut header = entry.header().clone();
            let kind = header.entry_type();
            if !self.paths.insert(path.clone()) {
                if kind.is_dir() {
                    continue;
                }
                bail!("/{path} is in {} and in another package", control.name);
            }
            if kind.is_file() {
                let mut content = Vec::new();
                entry.read_to_end(&mut content)?;
                if control.conffiles.iter().any(|file| *file == format!("/{original}")) {
                    hashes.insert(format!("/{original}"), HEXLOWER.encode(&Md5::digest(&content)));
                }
                self.archive.append_data(&mut header, &path, &content[..])?;
                self.keep_for_boot(&path, content);
            } else if let Some(target) = entry.link_name()? {
                // A hard link names a path in the archive, a symbolic one any text.
                let target = if kind.is_hard_link() { merged(self.arch, &text(&target)?) } else { target.to_string_lossy().into_owned() };
                self.archive.append_link(&mut header, &path, target)?;
            } else {
                self.archive.append_data(&mut header, &path, std::io::empty())?;
            }
        }
        Ok((list, hashes))
    }

    /// Keeps the kernel and its modules, which the initial RAM file systems need.
    fn keep_for_boot(&mut self, path: &str, content: Vec<u8>) {
        if let Some(release) = path.strip_prefix("boot/vmlinuz-") {
            self.kernel = Some(Kernel { release: release.to_owned(), image: content });
        } else if let Some((_, name)) = path.strip_prefix("usr/lib/modules/").and_then(|path| path.rsplit_once('/'))
            && let Some(name) = name.strip_suffix(".ko.xz")
        {
            self.modules.insert(name.replace('-', "_"), content);
        }
    }

    /// The kernel that one of the packages contained.
    pub fn kernel(&self) -> Option<&Kernel> {
        self.kernel.as_ref()
    }

    /// The kernel's module with this name, compressed with xz; `None` if it is built in.
    pub fn module(&self, name: &str) -> Option<&[u8]> {
        self.modules.get(name).map(Vec::as_slice)
    }

    /// Packages with a preinst script, by the names of their files in dpkg's database.
    pub fn preinst(&self) -> &[String] {
        &self.preinst
    }

    /// Adds a file that belongs to no package, and the directories above it.
    ///
    /// # Errors
    /// It can't be written.
    pub fn setting(&mut self, setting: &Setting) -> Result<()> {
        let parents: Vec<_> = setting.path.match_indices('/').map(|(at, _)| &setting.path[..at]).collect();
        for parent in parents {
            if !self.paths.contains(parent) && !merged_directories(self.arch).contains(&parent) {
                self.directory(parent, setting.directory_mode())?;
            }
        }
        self.file(&setting.path, setting.mode, &setting.content)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// It can't be written.
    pub fn finish(mut self) -> Result<()> {
        for directory in ["alternatives", "parts", "triggers", "updates"] {
            self.directory(&format!("{}/{directory}", dpkg::DIRECTORY), 0o755)?;
        }
        for (name, content) in std::mem::take(&mut self.database).files() {
            self.file(&format!("{}/{name}", dpkg::DIRECTORY), 0o644, content.as_bytes())?;
        }
        self.archive.into_inner().and_then(|mut file| file.flush()).context("writing the root file system")
    }

    fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        if self.paths.insert(path.to_owned()) {
            self.archive.append_data(&mut header(EntryType::Directory, mode, 0), path, std::io::empty())?;
        }
        Ok(())
    }

    fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.paths.insert(path.to_owned());
        Ok(self.archive.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?)
    }

    fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.paths.insert(path.to_owned());
        Ok(self.archive.append_data(&mut header(EntryType::Regular, mode, content.len()), path, content)?)
    }
}

/// A file of a package's control information.
struct ControlFile {
    name: String,
    mode: u32,
    content: Vec<u8>,
}

/// A package's control information, and its files for dpkg's database with their permissions.
fn control_files(archive: &mut dyn Read) -> Result<(Control, Vec<ControlFile>)> {
    let mut files = Vec::new();
    let mut archive = Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = text(&entry.path()?)?;
        if entry.header().entry_type().is_file() {
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            files.push(ControlFile { name, mode: entry.header().mode()?, content });
        }
    }
    let lossy = |wanted: &str| {
        let file = files.iter().find(|file| file.name == wanted)?;
        Some(String::from_utf8_lossy(&file.content).into_owned())
    };
    let mut control = lossy("control").and_then(Control::new).context("the package has no control file")?;
    control.conffiles = dpkg::conffiles(&lossy("conffiles").unwrap_or_default());
    control.triggers = lossy("triggers").unwrap_or_default();
    files.retain(|file| file.name != "control");
    Ok((control, files))
}

/// A path of an archive, relative to the root; the root's is empty.
fn text(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.strip_prefix('.').filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(text).trim_matches('/').to_owned())
}

/// A path with [`merged_directories`] replaced by those in `usr`.
fn merged(arch: Arch, path: &str) -> String {
    match path.split_once('/') {
        Some((first, _)) if merged_directories(arch).contains(&first) => format!("usr/{path}"),
        _ => path.to_owned(),
    }
}

/// A header of an entry of root's.
fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_a_merged_usr() {
        let of = |arch, name: &str| merged(arch, &text(Path::new(name)).unwrap());
        assert_eq!(
            ["./", ".", "./bin/sh", "./lib/x/", "./libexec/a", "./etc/.pwd.lock"].map(|name| of(Arch::Aarch64, name)),
            ["", "", "usr/bin/sh", "usr/lib/x", "libexec/a", "etc/.pwd.lock"]
        );
        assert_eq!(Arch::ALL.map(|arch| of(arch, "./lib64/ld.so")), ["lib64/ld.so", "usr/lib64/ld.so"]);
    }

    #[test]
    fn settings_bring_their_directories() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("root.tar");
        let mut root = Root::create(&file, Arch::Aarch64).unwrap();
        root.setting(&Setting::new("root/.ssh/authorized_keys", "key").private()).unwrap();
        root.setting(&Setting::new("etc/hostname", "web")).unwrap();
        assert!(root.preinst().is_empty());
        root.finish().unwrap();
        let mut archive = Archive::new(File::open(&file).unwrap());
        let entries: BTreeMap<_, _> = archive
            .entries()
            .unwrap()
            .map(Result::unwrap)
            .map(|entry| (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap()))
            .collect();
        assert_eq!(entries["root/.ssh"], 0o700);
        assert_eq!(entries["root/.ssh/authorized_keys"], 0o600);
        assert_eq!(entries["etc"], 0o755);
        assert!(entries.contains_key("var/lib/dpkg/status") && entries.contains_key("bin"));
    }
}
