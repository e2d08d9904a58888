//! Files extracted from Debian's packages, cached with their hashes: missing or changed files are fetched
//! again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::apt::{Apt, debian_name};
use super::deb::{self, Wanted};

use super::index::{self, Choice, Package};
use super::{mirror, modules};
use crate::config::Arch;
use crate::{cache, exit, out};

/// Time for which a stored item is used without checking the mirror for a newer one.
const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);

/// An item from Debian's archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// The newest kernel that stable's backports offer.
    NewestKernel,
    /// The kernel of Debian 13.
    Kernel6_12,
    /// The kernel of Debian 12.
    Kernel6_1,
    /// Kernel and initial RAM file system of Debian 13's text installer.
    Installer,
    /// Drivers that are modules of the newest kernel.
    NewestDrivers,
    /// Drivers that are modules of the kernel of Debian 13.
    Drivers6_12,
    /// Drivers that are modules of the kernel of Debian 12.
    Drivers6_1,
    /// The statically linked busybox.
    Busybox,
    /// The kernel of Debian 13 in the general flavour, which can be Xen's first domain, for x86-64.
    General6_12,
    /// Xen of Debian 13.
    Xen,
    /// UEFI firmware (EDK2) of Debian 13.
    Edk2,
    /// Device trees that come with the kernel of Debian 12.
    DeviceTrees6_1,
    /// The kernel of Debian 12 with the modules of its KVM for VMX, for x86-64.
    KvmHost6_1,
    /// The kernel of Debian 12 with the modules of its KVM for AMD-V.
    KvmHostAmd6_1,
}

/// Condition for a check for a newer version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// The stored file is a week old. Without a network it is used nevertheless.
    Weekly,
    /// Now.
    Check,
    /// Never: an item that isn't in the cache is an error.
    Cached,
}

impl Item {
    /// All items for an architecture.
    pub fn all(arch: Arch) -> &'static [Self] {
        match arch {
            Arch::Aarch64 => &[
                Self::NewestKernel,
                Self::NewestDrivers,
                Self::Kernel6_12,
                Self::Drivers6_12,
                Self::Kernel6_1,
                Self::Drivers6_1,
                Self::DeviceTrees6_1,
                Self::Installer,
                Self::Busybox,
                Self::Xen,
                Self::Edk2,
            ],
            Arch::X86_64 => &[
                Self::NewestKernel,
                Self::NewestDrivers,
                Self::Kernel6_12,
                Self::Drivers6_12,
                Self::Kernel6_1,
                Self::Drivers6_1,
                Self::General6_12,
                Self::Installer,
                Self::Busybox,
                Self::Xen,
                Self::KvmHost6_1,
                Self::KvmHostAmd6_1,
            ],
        }
    }

    /// The item's name in the cache, and the word for it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewestKernel => "debian",
            Self::Kernel6_12 => "debian:6.12",
            Self::Kernel6_1 => "debian:6.1",
            Self::Installer => "debian-installer",
            Self::NewestDrivers => "debian-drivers",
            Self::Drivers6_12 => "debian-drivers:6.12",
            Self::Drivers6_1 => "debian-drivers:6.1",
            Self::General6_12 => "debian-general:6.12",
            Self::Busybox => "busybox",
            Self::Xen => "xen",
            Self::Edk2 => "edk2",
            Self::DeviceTrees6_1 => "device-trees:6.1",
            Self::KvmHost6_1 => "kvm-host:6.1",
            Self::KvmHostAmd6_1 => "kvm-host-amd:6.1",
        }
    }

    /// The release that it is of.
    pub fn suite(self) -> &'static str {
        match self {
            Self::NewestKernel | Self::NewestDrivers => "trixie-backports",
            Self::Kernel6_12 | Self::General6_12 | Self::Drivers6_12 | Self::Installer | Self::Busybox | Self::Xen | Self::Edk2 => "trixie",
            Self::Kernel6_1 | Self::Drivers6_1 | Self::DeviceTrees6_1 | Self::KvmHost6_1 | Self::KvmHostAmd6_1 => "bookworm",
        }
    }

    fn choose(self, arch: Arch, packages: &[Package]) -> Option<Package> {
        // The emulated PC is slow: it uses kernels for virtual machines.
        let series = |series| match arch {
            Arch::Aarch64 => Choice::General(series),
            Arch::X86_64 => Choice::Cloud(series),
        };
        let kernel = |choice| index::newest_kernel(packages, choice, debian_name(arch));
        match self {
            Self::NewestKernel => kernel(Choice::NewestCloud),
            Self::NewestDrivers => index::newest_named(packages, &modules::package_of(&kernel(Choice::NewestCloud)?.name)),
            Self::Drivers6_12 => kernel(series("6.12")),
            Self::Drivers6_1 | Self::DeviceTrees6_1 => kernel(series("6.1")),
            Self::Kernel6_12 => kernel(series("6.12")),
            Self::General6_12 => kernel(Choice::General("6.12")),
            Self::Kernel6_1 | Self::KvmHost6_1 | Self::KvmHostAmd6_1 => kernel(series("6.1")),
            Self::Installer => index::newest_named(packages, &format!("debian-installer-13-netboot-{}", debian_name(arch))),
            Self::Busybox => index::newest_named(packages, "busybox-static"),
            Self::Xen => index::newest_named(packages, &format!("xen-hypervisor-4.20-{}", debian_name(arch))),
            Self::Edk2 => index::newest_named(packages, "qemu-efi-aarch64"),
        }
    }

    fn wanted(self) -> &'static [Wanted] {
        match self {
            Self::NewestKernel | Self::Kernel6_12 | Self::Kernel6_1 | Self::General6_12 => {
                &[Wanted { is: is_kernel, name: "kernel", required: true }]
            }
            Self::NewestDrivers | Self::Drivers6_12 | Self::Drivers6_1 => modules::ALL,
            Self::Installer => &[
                Wanted { is: |path| is_installer(path, "linux"), name: "kernel", required: true },
                Wanted { is: |path| is_installer(path, "initrd.gz"), name: "initrd", required: true },
            ],
            Self::Busybox => &[Wanted { is: |path| matches!(path, "usr/bin/busybox" | "bin/busybox"), name: "busybox", required: true }],
            Self::KvmHost6_1 => &[
                Wanted { is: is_kernel, name: "kernel", required: true },
                Wanted { is: |path| path.ends_with("/kernel/virt/lib/irqbypass.ko"), name: "irqbypass.ko", required: true },
                Wanted { is: |path| path.ends_with("/kernel/arch/x86/kvm/kvm.ko"), name: "kvm.ko", required: true },
                Wanted { is: |path| path.ends_with("/kernel/arch/x86/kvm/kvm-intel.ko"), name: "kvm-intel.ko", required: true },
            ],
            Self::KvmHostAmd6_1 => KVM_HOST_OF_AMD,
            Self::Xen => {
                &[Wanted { is: |path| matches!(path, "boot/xen-4.20-arm64" | "boot/xen-4.20-amd64.gz"), name: "xen", required: true }]
            }
            Self::DeviceTrees6_1 => &[
                Wanted { is: |path| path.ends_with("/broadcom/bcm2711-rpi-4-b.dtb"), name: RASPBERRY_PI_4, required: true },
                Wanted { is: |path| path.ends_with("/xilinx/zynqmp-zcu102-rev1.0.dtb"), name: ZCU102, required: true },
            ],
            Self::Edk2 => &[Wanted { is: |path| path == "usr/share/qemu-efi-aarch64/QEMU_EFI.fd", name: "firmware", required: true }],
        }
    }
}

/// File of [`Item::DeviceTrees6_1`]: the Raspberry Pi 4's.
pub const RASPBERRY_PI_4: &str = "raspberry-pi-4";
/// File of [`Item::DeviceTrees6_1`]: the ZCU102's.
pub const ZCU102: &str = "zcu102";

/// Modules of KVM for AMD-V: `kvm-amd.ko` names the driver of AMD's secure processor, and that one the generator of random numbers.
const KVM_HOST_OF_AMD: &[Wanted] = &[
    Wanted { is: is_kernel, name: "kernel", required: true },
    Wanted { is: |path| path.ends_with("/kernel/virt/lib/irqbypass.ko"), name: "irqbypass.ko", required: true },
    Wanted { is: |path| path.ends_with("/kernel/arch/x86/kvm/kvm.ko"), name: "kvm.ko", required: true },
    Wanted { is: |path| path.ends_with("/kernel/drivers/char/hw_random/rng-core.ko"), name: "rng-core.ko", required: false },
    Wanted { is: |path| path.ends_with("/kernel/drivers/crypto/ccp/ccp.ko"), name: "ccp.ko", required: false },
    Wanted { is: |path| path.ends_with("/kernel/arch/x86/kvm/kvm-amd.ko"), name: "kvm-amd.ko", required: true },
];

/// Whether a path is that of a file of the text installer, for any architecture: a package has files of one only.
fn is_installer(path: &str, file: &str) -> bool {
    Arch::ALL.iter().any(|&arch| path.ends_with(&format!("/text/debian-installer/{}/{file}", debian_name(arch))))
}

fn is_kernel(path: &str) -> bool {
    path.starts_with("boot/vmlinuz-") || (path.starts_with("usr/lib/modules/") && path.ends_with("/vmlinuz"))
}

/// A stored item.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    /// Its directory.
    #[serde(skip)]
    pub dir: PathBuf,
    /// Its package.
    pub package: String,
    /// The package's version.
    pub version: String,
    /// Time of the last request to the mirror, in seconds since 1970.
    checked: u64,
    /// The SHA-256 of each file, by name. Empty in a cache of an earlier version.
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Names of the files that were looked for in the package. Empty in a cache of an earlier version.
    #[serde(default)]
    sought: Vec<String>,
}

/// Cached files of an item.
enum Found {
    Nothing,
    /// A file is missing or was changed.
    Damaged(String),
    Intact(Stored),
}

impl Found {
    fn intact(self) -> Option<Stored> {
        match self {
            Self::Intact(stored) => Some(stored),
            Self::Nothing | Self::Damaged(_) => None,
        }
    }
}

/// The item, if it is in the cache and undamaged.
pub fn cached(arch: Arch, item: Item) -> Option<Stored> {
    read(&directory(arch).ok()?.join(item.name()), item.wanted()).intact()
}

/// Folder of an architecture's items, and of apt's files.
///
/// # Errors
/// The cache has no directory.
pub fn directory(arch: Arch) -> Result<PathBuf> {
    Ok(cache::dir()?.join(match arch {
        Arch::Aarch64 => "debian",
        Arch::X86_64 => "debian-amd64",
    }))
}

/// Gets an item, from the cache or the mirror.
pub fn get(arch: Arch, item: Item, freshness: Freshness) -> Result<Stored> {
    get_from(&directory(arch)?, arch, item, freshness)
}

/// Gets an item from a folder of items, or from the mirror.
fn get_from(debian: &Path, arch: Arch, item: Item, freshness: Freshness) -> Result<Stored> {
    let dir = debian.join(item.name());
    let is_fresh = |stored: &Stored| match freshness {
        Freshness::Weekly => now().saturating_sub(stored.checked) < FRESH.as_secs(),
        Freshness::Check => false,
        Freshness::Cached => true,
    };
    if let Some(stored) = read(&dir, item.wanted()).intact().filter(is_fresh) {
        return Ok(stored);
    }
    if freshness == Freshness::Cached {
        return Err(exit::lacking(format!("{} is not in the cache", item.name())));
    }
    // A cache that can't be written is used, too, once it is stale.
    let lock = cache::lock(debian, "fetch");
    // Another command may have fetched it while this one waited.
    let found = read(&dir, item.wanted());
    if let Found::Damaged(what) = &found {
        out::note(format_args!("stile: {} in the cache is damaged ({what}): fetching it again", item.name()));
    }
    let stored = found.intact();
    if stored.as_ref().is_some_and(is_fresh) {
        return stored.context("the cache changed while it was read");
    }
    let fetched = lock.and_then(|_lock| fetch(arch, item, debian, &dir, stored.as_ref()));
    match (fetched, stored) {
        (Ok(fetched), _) => Ok(fetched),
        (Err(error), Some(stored)) if freshness == Freshness::Weekly => {
            out::note(format_args!("stile: {error:#}\nstile: using {} {} from the cache", stored.package, stored.version));
            Ok(stored)
        }
        (Err(error), _) => Err(error),
    }
}

/// Queries the mirror, and downloads unless the newest version is stored already.
fn fetch(arch: Arch, item: Item, debian: &Path, dir: &Path, stored: Option<&Stored>) -> Result<Stored> {
    let apt = Apt::new(arch, &debian.join("apt"), item.suite(), &mirror::mirror()?)?;
    let package =
        item.choose(arch, &apt.packages()?).with_context(|| format!("Debian {} has no package for {}", item.suite(), item.name()))?;
    let (name, version) = (package.name.clone(), package.version.clone());
    let mut fetched =
        Stored { dir: dir.to_owned(), package: name, version, checked: now(), files: BTreeMap::new(), sought: names(item.wanted()) };
    let is_same =
        |stored: &&Stored| (&stored.package, &stored.version, &stored.sought) == (&fetched.package, &fetched.version, &fetched.sought);
    if let Some(stored) = stored.filter(is_same) {
        fetched.files = stored.files.clone();
        write_about(dir, &fetched)?;
        return Ok(fetched);
    }
    // Built aside and moved into place: an interrupted command leaves no partial item.
    let download = tempfile::tempdir_in(debian)?;
    let file = apt.download(&package, download.path())?;
    let made = tempfile::tempdir_in(debian)?;
    deb::extract(&file, item.wanted(), made.path())?;
    fetched.files = hashes(made.path(), item.wanted())?;
    write_about(made.path(), &fetched)?;
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    let made = made.keep();
    fs::rename(&made, dir).with_context(|| format!("moving {} to {}", made.display(), dir.display()))?;
    Ok(fetched)
}

const ABOUT: &str = "about.json";

/// Reads an item with these files from the cache, and verifies the files' hashes. Items of an earlier
/// version, without hashes, are not verified.
fn read(dir: &Path, wanted: &[Wanted]) -> Found {
    let Ok(text) = fs::read(dir.join(ABOUT)) else { return Found::Nothing };
    let Ok(stored) = serde_json::from_slice::<Stored>(&text) else { return Found::Damaged(format!("{ABOUT} can't be read")) };
    // An earlier version looked for fewer files: stale, so that the package is fetched again.
    let is_whole = wanted.iter().all(|file| file.required || stored.sought.iter().any(|name| name == file.name));
    let checked = if is_whole { stored.checked } else { 0 };
    let files = match hashes(dir, wanted) {
        Ok(files) => files,
        Err(error) => return Found::Damaged(format!("{error:#}")),
    };
    if let Some((name, _)) = files.iter().find(|(name, hash)| stored.files.get(*name).is_some_and(|stored| stored != *hash)) {
        return Found::Damaged(format!("{name} was changed"));
    }
    Found::Intact(Stored { dir: dir.to_owned(), checked, files, ..stored })
}

fn names(wanted: &[Wanted]) -> Vec<String> {
    wanted.iter().map(|file| file.name.to_owned()).collect()
}

/// The hashes of an item's files.
fn hashes(dir: &Path, wanted: &[Wanted]) -> Result<BTreeMap<String, String>> {
    let expected = wanted.iter().filter(|file| file.required || dir.join(file.name).exists());
    expected.map(|file| Ok((file.name.to_owned(), hash(&dir.join(file.name))?))).collect()
}

/// The SHA-256 of a file, in hexadecimal digits.
fn hash(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(HEXLOWER.encode(&Sha256::digest(&bytes)))
}

/// Writes [`ABOUT`] in one step: others may read it, and an interrupted command leaves the earlier one. The lock is held.
fn write_about(dir: &Path, stored: &Stored) -> Result<()> {
    let (path, new) = (dir.join(ABOUT), dir.join(format!("{ABOUT}.new")));
    let text = serde_json::to_vec_pretty(stored)?;
    fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).with_context(|| format!("writing {}", path.display()))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: [Wanted; 2] =
        [Wanted { is: |_| true, name: "kernel", required: true }, Wanted { is: |_| true, name: "initrd", required: true }];

    /// Stores an item with two files, with or without hashes.
    fn store(dir: &Path, with_hashes: bool) {
        fs::write(dir.join("kernel"), "a kernel").unwrap();
        fs::write(dir.join("initrd"), "").unwrap();
        let files = if with_hashes { hashes(dir, &WANTED).unwrap() } else { BTreeMap::new() };
        let stored = Stored { dir: dir.to_owned(), package: "linux".into(), version: "1".into(), checked: 1, files, sought: Vec::new() };
        write_about(dir, &stored).unwrap();
    }

    fn damage(dir: &Path) -> Option<String> {
        match read(dir, &WANTED) {
            Found::Damaged(what) => Some(what),
            Found::Nothing | Found::Intact(_) => None,
        }
    }

    #[test]
    fn the_installer_is_that_of_the_architecture() {
        let names = Arch::ALL.map(|arch| format!("debian-installer-13-netboot-{}", debian_name(arch)));
        let list = names.each_ref().map(|name| format!("Package: {name}\nVersion: 1\n")).join("\n");
        let packages: Vec<_> = index::packages(&list).collect();
        for (arch, name) in Arch::ALL.into_iter().zip(&names) {
            assert!(Item::all(arch).contains(&Item::Installer));
            assert_eq!(&Item::Installer.choose(arch, &packages).unwrap().name, name);
            let folder = |kind: &str| format!("usr/lib/debian-installer/images/13/x/{kind}/debian-installer/{}", debian_name(arch));
            let is_kernel = Item::Installer.wanted()[0].is;
            assert!(is_kernel(&format!("{}/linux", folder("text"))) && !is_kernel(&format!("{}/linux", folder("gtk"))));
        }
    }

    #[test]
    fn damaged_files_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read(dir.path(), &WANTED), Found::Nothing));
        store(dir.path(), true);
        assert!(read(dir.path(), &WANTED).intact().is_some_and(|stored| stored.version == "1"));
        fs::write(dir.path().join("kernel"), "a kern").unwrap();
        assert_eq!(damage(dir.path()).as_deref(), Some("kernel was changed"));
        fs::remove_file(dir.path().join("kernel")).unwrap();
        assert!(damage(dir.path()).is_some_and(|what| what.contains("kernel")));
        store(dir.path(), true);
        fs::write(dir.path().join(ABOUT), "{").unwrap();
        assert!(damage(dir.path()).is_some());
    }

    #[test]
    fn files_that_were_not_looked_for_are_fetched() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), true);
        let more = [Wanted { is: |_| true, name: "kernel", required: true }, Wanted { is: |_| true, name: "module", required: false }];
        let checked = |found: Found| found.intact().map(|stored| stored.checked);
        assert_eq!(checked(read(dir.path(), &more)), Some(0), "stale");
        let about = fs::read_to_string(dir.path().join(ABOUT)).unwrap();
        fs::write(dir.path().join(ABOUT), about.replace(r#""sought": []"#, r#""sought": ["kernel", "module"]"#)).unwrap();
        assert!(matches!(read(dir.path(), &more), Found::Intact(_)));
    }

    #[test]
    fn a_stale_item_is_used_if_the_cache_cannot_be_written() {
        let debian = tempfile::tempdir().unwrap();
        let dir = debian.path().join("busybox");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("busybox"), "a program").unwrap();
        let files = hashes(&dir, Item::Busybox.wanted()).unwrap();
        let stored =
            Stored { dir: dir.clone(), package: "busybox-static".into(), version: "1".into(), checked: 1, files, sought: Vec::new() };
        write_about(&dir, &stored).unwrap();
        // Not a file: the lock can't be made, for root neither.
        fs::create_dir(debian.path().join("fetch.lock")).unwrap();
        let get = |freshness| get_from(debian.path(), Arch::Aarch64, Item::Busybox, freshness);
        assert_eq!(get(Freshness::Weekly).unwrap().version, "1");
        assert!(get(Freshness::Check).unwrap_err().to_string().contains("fetch.lock"));
    }

    #[test]
    fn a_reader_finds_the_earlier_description_or_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), true);
        let text = fs::read_to_string(dir.path().join(ABOUT)).unwrap();
        let mut earlier = fs::File::open(dir.path().join(ABOUT)).unwrap();
        store(dir.path(), false);
        let mut read = String::new();
        std::io::Read::read_to_string(&mut earlier, &mut read).unwrap();
        assert_eq!(read, text);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "two files and their description");
    }

    #[test]
    fn files_of_an_earlier_version_are_not_verified() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), false);
        let stored = read(dir.path(), &WANTED).intact().unwrap();
        assert_eq!(stored.files["kernel"], hash(&dir.path().join("kernel")).unwrap());
        fs::remove_file(dir.path().join("initrd")).unwrap();
        assert!(damage(dir.path()).is_some());
    }
}
