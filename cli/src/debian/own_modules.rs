//! Kernel modules in the folder `modules`, built against Debian's headers of the kernel in the cache.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use flate2::Crc;

use super::apt::Apt;
use super::drivers::Module;
use super::index::{self, Package};
use super::item::Item;
use super::store::{self, Freshness};
use super::{mirror, tree};
use crate::config::{Arch, DebianKernel};
use crate::initramfs::quoted;
use crate::progress::Task;
use crate::{cache, exit};

/// Library packages of Debian's stable release that the programs of its kernels' packages need: this system's may be older.
const LIBRARIES: [&str; 2] = ["libc6", "libelf1t64"];
/// Those programs, if they are there: a dependency generator, the module linker's checks, and its checks of x86's code.
const PROGRAMS: [&str; 3] = ["scripts/basic/fixdep", "scripts/mod/modpost.real-lsb-64", "tools/objtool/objtool.real-x86"];

/// A module of this repository.
struct Own {
    arch: Arch,
    name: &'static str,
    /// Names and texts.
    sources: [(&'static str, &'static str); 2],
}

const IPI: Own = Own {
    arch: Arch::X86_64,
    name: "stile_ipi.ko",
    sources: [
        ("Kbuild", include_str!("../../../modules/stile-ipi/Kbuild")),
        ("stile_ipi.c", include_str!("../../../modules/stile-ipi/stile_ipi.c")),
    ],
};

const fn served(arch: Arch) -> Own {
    Own {
        arch,
        name: "stile_served.ko",
        sources: [
            ("Kbuild", include_str!("../../../modules/stile-served/Kbuild")),
            ("stile_served.c", include_str!("../../../modules/stile-served/stile_served.c")),
        ],
    }
}

/// The module `stile-ipi` for one of Debian's kernels for x86-64; none for what is no kernel.
///
/// # Errors
/// No mirror; a failed download with nothing in the cache; no compiler.
pub fn ipi_module(kernel: DebianKernel, freshness: Freshness) -> Result<Option<Module>> {
    item(Arch::X86_64, kernel).map(|item| IPI.get(item, freshness)).transpose()
}

/// The module `stile-served` for one of Debian's kernels; none for kernels without modules.
///
/// # Errors
/// See [`ipi_module`].
pub fn served_module(arch: Arch, kernel: DebianKernel, freshness: Freshness) -> Result<Option<Module>> {
    item(arch, kernel).map(|item| served(arch).get(item, freshness)).transpose()
}

/// A kernel that modules are built for.
fn item(arch: Arch, kernel: DebianKernel) -> Option<Item> {
    let (image, drivers) = Item::of(kernel, arch);
    drivers.map(|_| image)
}

/// The architecture of this machine, on which the compiler runs.
const fn host() -> Arch {
    if cfg!(target_arch = "aarch64") { Arch::Aarch64 } else { Arch::X86_64 }
}

/// Prefix of the names of an architecture's compiler and binary utilities.
fn tools(arch: Arch) -> &'static str {
    match arch {
        _ if arch == host() => "",
        Arch::Aarch64 => "aarch64-linux-gnu-",
        Arch::X86_64 => "x86_64-linux-gnu-",
    }
}

/// The packages with the programs that build modules for an architecture.
fn packages(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 if arch == host() => "gcc make",
        Arch::X86_64 if arch == host() => "gcc make libelf1",
        Arch::Aarch64 => "gcc-aarch64-linux-gnu make",
        Arch::X86_64 => "gcc-x86-64-linux-gnu make libelf1",
    }
}

impl Own {
    /// The module for a kernel, built unless it is in the cache.
    fn get(&self, kernel: Item, freshness: Freshness) -> Result<Module> {
        let stored = store::get(self.arch, kernel, freshness)?;
        let release = release(&stored.package).with_context(|| format!("{} is no kernel's package", stored.package))?;
        let debian = store::directory(self.arch)?;
        let mut sum = Crc::new();
        self.sources.iter().for_each(|(_, text)| sum.update(text.as_bytes()));
        let file = debian.join("modules").join(format!("{release}-{}-{:08x}", stored.version, sum.sum())).join(self.name);
        if !file.exists() {
            if freshness == Freshness::Cached {
                return Err(exit::lacking(format!("{} is not built yet", self.name)));
            }
            // Debian 12 and later run the programs of Debian 12.
            let libraries = if kernel == Item::Kernel6_1 { None } else { Some(tree::tree(host(), &LIBRARIES)?) };
            let _lock = cache::lock(&debian, "fetch")?;
            if !file.exists() {
                self.build(&debian, kernel.suite(), release, &stored.version, libraries.as_deref(), &file)?;
            }
        }
        let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok(Module { name: self.name, bytes })
    }

    /// Builds the module for a kernel of `suite`. `libraries`: a tree with [`LIBRARIES`] for the programs of the kernel's packages.
    fn build(&self, debian: &Path, suite: &'static str, release: &str, version: &str, libraries: Option<&Path>, to: &Path) -> Result<()> {
        let work = tempfile::tempdir_in(debian)?;
        let headers = self.headers(debian, suite, release, version, work.path())?;
        if let Some(libraries) = libraries {
            wrap_programs(work.path(), libraries)?;
        }
        let source = work.path().join("source");
        fs::create_dir(&source)?;
        for (name, text) in self.sources {
            fs::write(source.join(name), text)?;
        }
        let (name, needed, tools) = (self.name, packages(self.arch), tools(self.arch));
        let kernels_arch = match self.arch {
            Arch::Aarch64 => "arm64",
            Arch::X86_64 => "x86_64",
        };
        let task = Task::start(format!("building {name} for Linux {release}"));
        let output = Command::new("make")
            .arg("-C")
            .arg(&headers)
            .arg(format!("M={}", source.display()))
            .args([format!("ARCH={kernels_arch}"), format!("CROSS_COMPILE={tools}"), format!("CC={tools}gcc")])
            // An option that GCC before 13 does not know, and types for BPF, which need a program of another package.
            .args(["CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| exit::lacking(format!("make can't be run ({error}): install the packages {needed}")))?;
        drop(task);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!("{name} can't be built (are the packages {needed} installed?):\n{}", errors.trim_end());
        }
        let dir = to.parent().context("the module has no directory")?;
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        // Moved into place when it is complete.
        fs::rename(source.join(name), to).with_context(|| format!("moving {name} to {}", dir.display()))
    }

    /// Unpacks a kernel's headers and build programs; returns the directory to build in.
    fn headers(&self, debian: &Path, suite: &'static str, release: &str, version: &str, to: &Path) -> Result<PathBuf> {
        let unpack = |apt: &Apt, packages: &[Package], name: &str| {
            let package = index::newest_named(packages, name).with_context(|| format!("Debian has no {name}"))?;
            if package.version != version {
                let why = format!("{name} is {}, the kernel in the cache {version}: run `stile fetch`", package.version);
                return Err(exit::lacking(why));
            }
            let download = tempfile::tempdir_in(debian)?;
            tree::unpack(&apt.download(&package, download.path())?, to)
        };
        let own = format!("linux-headers-{release}");
        let number = number(release).context("the kernel is not one that modules are built for")?;
        let common = format!("linux-headers-{number}-common");
        // Debian 12 has one for all releases of a series.
        let programs = if number.starts_with("6.1.") { "linux-kbuild-6.1".to_owned() } else { format!("linux-kbuild-{number}") };
        let apt = apt_for(self.arch, suite)?;
        let packages = apt.packages()?;
        unpack(&apt, &packages, &own)?;
        unpack(&apt, &packages, &common)?;
        // Programs run here, whatever they build for.
        if self.arch == host() {
            unpack(&apt, &packages, &programs)?;
        } else {
            // Another command may use that cache; nothing takes the two locks in the other order.
            let _lock = cache::lock(&store::directory(host())?, "fetch")?;
            let apt = apt_for(host(), suite)?;
            unpack(&apt, &apt.packages()?, &programs)?;
        }
        // The packages expect to be installed.
        let sources = to.join("usr/src");
        let makefile = sources.join(&own).join("Makefile");
        let text = fs::read_to_string(&makefile).with_context(|| format!("reading {}", makefile.display()))?;
        let moved = text.replace("/usr/src/", &format!("{}/", sources.display()));
        fs::write(&makefile, moved).with_context(|| format!("writing {}", makefile.display()))?;
        Ok(sources.join(own))
    }
}

fn apt_for(arch: Arch, suite: &'static str) -> Result<Apt> {
    Apt::new(arch, &store::directory(arch)?.join("apt"), suite, &mirror::mirror()?)
}

/// Replaces the programs of kernels' packages, unpacked in `work`, by scripts that run them with the C library in the tree `libraries`.
fn wrap_programs(work: &Path, libraries: &Path) -> Result<()> {
    let (loader, folder) = match host() {
        Arch::Aarch64 => ("usr/lib/ld-linux-aarch64.so.1", "usr/lib/aarch64-linux-gnu"),
        Arch::X86_64 => ("usr/lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu"),
    };
    let (loader, folder) = (libraries.join(loader), libraries.join(folder));
    for package in fs::read_dir(work.join("usr/lib"))?.collect::<Result<Vec<_>, _>>()? {
        for program in PROGRAMS.map(|program| package.path().join(program)).iter().filter(|program| program.exists()) {
            let real = program.with_extension("elf");
            fs::rename(program, &real).with_context(|| format!("moving {}", program.display()))?;
            let words = [&loader, Path::new("--library-path"), &folder, &real].map(|word| quoted(&word.to_string_lossy()));
            fs::write(program, format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")))?;
            fs::set_permissions(program, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// The kernel's release in the name of its package.
fn release(package: &str) -> Option<&str> {
    let rest = package.strip_prefix("linux-image-").or_else(|| package.strip_prefix("linux-binary-"))?;
    Some(rest.strip_suffix("-unsigned").unwrap_or(rest))
}

/// Version and ABI of a release, without its flavour.
fn number(release: &str) -> Option<&str> {
    let rest = release.strip_suffix("-amd64").or_else(|| release.strip_suffix("-arm64"))?;
    let number = rest.strip_suffix("-cloud").unwrap_or(rest);
    // Other flavours have headers of their own.
    (!["-rt", "-16k"].iter().any(|flavour| number.ends_with(flavour))).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_packages() {
        assert_eq!(release("linux-image-6.1.0-50-cloud-amd64-unsigned"), Some("6.1.0-50-cloud-amd64"));
        assert_eq!(release("linux-image-6.1.0-50-cloud-amd64"), Some("6.1.0-50-cloud-amd64"));
        assert_eq!(release("linux-binary-7.3.4+deb13-cloud-arm64"), Some("7.3.4+deb13-cloud-arm64"));
        assert_eq!(release("busybox-static"), None);
    }

    #[test]
    fn flavours_of_releases() {
        assert_eq!(number("6.1.0-50-cloud-amd64"), Some("6.1.0-50"));
        assert_eq!(number("6.1.0-50-arm64"), Some("6.1.0-50"));
        assert_eq!(number("6.12.117+deb13-arm64"), Some("6.12.117+deb13"));
        assert_eq!(number("7.3.4+deb13-cloud-arm64"), Some("7.3.4+deb13"));
        assert_eq!(number("7.3.4+deb13-rt-amd64"), None);
    }
}
