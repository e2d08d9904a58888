//! `stile disk create`: builds a disk with a Debian system.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::json;
use stile_blob::is_name;
use tempfile::{NamedTempFile, TempPath};

use super::configure::{self, Vm};
use super::root::Root;
use super::settings::{self, Setting, System};
use super::{initrd, qemu_img};
use crate::args::DiskCreateArgs;
use crate::config::{Arch, units};
use crate::debian::{self, Apt, Freshness, Package};
use crate::progress::Task;
use crate::{cache, cleanup, emulator, exit, out};

/// Debian's release: the stable one.
const SUITE: &str = "trixie";

/// The kernel, unless the wanted packages have another one.
const fn kernel(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => "linux-image-cloud-arm64",
        Arch::X86_64 => "linux-image-cloud-amd64",
    }
}

/// Packages of every disk beside those that Debian requires: a system that boots, has networks and can install more.
pub(super) const fn base(arch: Arch) -> [&'static str; 15] {
    [
        "apt",
        "dbus",
        "e2fsprogs",
        "initramfs-tools",
        "iproute2",
        "iputils-ping",
        "kmod",
        "less",
        "libpam-systemd",
        kernel(arch),
        "netbase",
        "procps",
        "systemd-resolved",
        "systemd-sysv",
        "udev",
    ]
}

/// Free bytes that the work needs: the packages' archive, the disk and the image (docs/disks.md, "Creating").
const NEEDED: u64 = 2 << 30;

/// Bytes of an image without further packages, at least.
const SMALLEST_IMAGE: u64 = 320 << 20;

/// The note on a system with a server for SSH that lets nobody in.
const NO_KEY: &str = "stile: there is no public key in ~/.ssh, so nobody can log in to this disk's system over the network: make one with \
                      ssh-keygen, or use --ssh-key (docs/disks.md: adding a key to a finished disk)";

/// Creates a disk.
///
/// # Errors
/// The file exists; a file of keys has none; too little room; unknown package; a missing program on this machine; a package can't be
/// fetched or configured.
pub fn create(args: &DiskCreateArgs) -> Result<u8> {
    let target = Target::check(&args.file)?;
    let hostname = match &args.hostname {
        Some(name) => name.clone(),
        None => hostname(&args.file),
    };
    let keys = keys(&args.ssh_key)?;
    let unreachable = keys.is_empty() && args.packages.iter().any(|name| name == "openssh-server");
    if unreachable {
        // Before minutes of work, too: the user may prefer to make a key first.
        out::note(NO_KEY);
    }
    qemu_img::ensure()?;
    emulator::ensure_for_model(args.arch, "max")?;
    let mirror = debian::mirror()?;
    let dir = cache::dir()?.join("disks");
    let _lock = cache::lock(&dir, "create")?;
    room(&dir, NEEDED, "STILE_CACHE names another directory")?;
    room(&target.directory, SMALLEST_IMAGE, "choose another directory")?;
    // Here and not among the temporary files, which may be in memory. Leftovers of a killed command are removed by the next one.
    let (work, _cleanup) =
        cleanup::removing(|| tempfile::tempdir_in(&dir)).with_context(|| format!("making a directory in {}", dir.display()))?;

    let packages = fetch(args.arch, &args.packages, &mirror)?;
    let (uuid, security) = (uuid()?, debian::security_mirror());
    let system = System { hostname: &hostname, uuid: &uuid, keys: &keys, suite: SUITE, mirror: &mirror, security: security.as_deref() };
    let paths = Paths::new(work.path());
    prepare(args.arch, &packages, &settings::settings(&system), &paths)?;
    file_system(&paths.disk, args.size, &uuid)?;
    let Paths { kernel, initrd, disk, archive } = &paths;
    configure::run(&Vm { arch: args.arch, kernel, initrd, disk, archive, packages: packages.len() })?;
    fs::remove_file(&paths.archive).context("removing the packages' archive")?;
    let task = Task::start(format!("writing {}", args.file.display()));
    let image = work.path().join("image.qcow2");
    qemu_img::to_qcow2(&paths.disk, &image).context("writing the image")?;
    target.place(&image)?;
    drop(task);

    let size = fs::metadata(&args.file).map_or(0, |about| about.len());
    if args.json {
        out::json(&json!({"output": args.file, "packages": packages.len(), "bytes": size, "size": args.size}))?;
    } else {
        out::line(format_args!(
            "{}: Debian {SUITE} for {}, {}, {} of at most {}",
            args.file.display(),
            debian::debian_name(args.arch),
            units::plural(packages.len(), "package"),
            units::rounded_size(size),
            units::rounded_size(args.size)
        ))?;
    }
    if unreachable {
        out::note(NO_KEY);
    }
    Ok(exit::OK)
}

/// Checks that a directory's file system has this many free bytes, before minutes of work: later, the VM that configures the packages would
/// report I/O errors only.
fn room(dir: &Path, bytes: u64, instead: &str) -> Result<()> {
    // File systems without a fixed size report zero blocks.
    match rustix::fs::statvfs(dir) {
        Ok(about) if about.f_blocks != 0 && about.f_bavail.saturating_mul(about.f_frsize) < bytes => Err(exit::usage(format!(
            "there is too little room in {}: {} are free, and {} are needed; free some, or {instead}",
            dir.display(),
            units::rounded_size(about.f_bavail.saturating_mul(about.f_frsize)),
            units::rounded_size(bytes)
        ))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Path of the finished image.
struct Target<'a> {
    file: &'a Path,
    directory: PathBuf,
}

impl<'a> Target<'a> {
    /// Checks that the file can be created, before minutes of work.
    fn check(file: &'a Path) -> Result<Self> {
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let target = Self { file, directory: parent.to_owned() };
        if file.file_name().is_none() {
            return Err(exit::usage(format!("{} is not a file's name; expected one such as web.qcow2", file.display())));
        }
        if fs::symlink_metadata(file).is_ok() {
            return Err(target.exists());
        }
        tempfile::tempfile_in(parent).map_err(|error| exit::usage(format!("no file can be made in {}: {error}", parent.display())))?;
        Ok(target)
    }

    /// Moves the image there. The file appears with its whole content, or not at all. One that appeared meanwhile stays.
    fn place(&self, image: &Path) -> Result<()> {
        let writing = || format!("writing {}", self.file.display());
        let image = TempPath::try_from_path(image).with_context(writing)?;
        let image = match image.persist_noclobber(self.file) {
            Ok(()) => return Ok(()),
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => return Err(self.exists()),
            // Another file system.
            Err(error) => error.path,
        };
        let (mut copy, _cleanup) = cleanup::removing(|| NamedTempFile::new_in(&self.directory)).with_context(writing)?;
        File::open(&image).and_then(|mut image| std::io::copy(&mut image, &mut copy)).with_context(writing)?;
        match copy.persist_noclobber(self.file) {
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Err(self.exists()),
            placed => placed.map(|_| ()).map_err(|error| error.error).with_context(writing),
        }
    }

    fn exists(&self) -> anyhow::Error {
        exit::usage(format!("{} exists: remove it, or choose another name", self.file.display()))
    }
}

/// Files made on the way.
struct Paths {
    kernel: PathBuf,
    initrd: PathBuf,
    disk: PathBuf,
    archive: PathBuf,
}

impl Paths {
    fn new(dir: &Path) -> Self {
        let path = |name: &str| dir.join(name);
        Self { kernel: path("kernel"), initrd: path("initrd"), disk: path("disk.raw"), archive: path("root.tar") }
    }
}

/// The host's name for a disk in this file: the name's part before the first dot, as far as it can be one.
fn hostname(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name: String = name.split('.').next().unwrap_or_default().chars().map(|c| if c == '_' { '-' } else { c }).collect();
    if is_name(&name) { name } else { "debian".to_owned() }
}

/// Public keys for log-ins: from the given files, or else from `~/.ssh`.
fn keys(files: &[PathBuf]) -> Result<String> {
    let mut keys = String::new();
    for file in files {
        let text =
            fs::read_to_string(file).map_err(|error| exit::usage(format!("--ssh-key: {} can't be read: {error}", file.display())))?;
        if text.contains("PRIVATE KEY") {
            return Err(exit::usage(format!("--ssh-key: {} is a private key; expected the public one, with .pub", file.display())));
        }
        let lines = lines(&text);
        if lines.is_empty() {
            return Err(exit::usage(format!("--ssh-key: {} has no public key: ssh-keygen makes one", file.display())));
        }
        keys += &lines;
    }
    if files.is_empty()
        && let Some(home) = env::var_os("HOME")
    {
        let mut found: Vec<_> =
            fs::read_dir(Path::new(&home).join(".ssh")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        found.retain(|path| path.extension().is_some_and(|extension| extension == "pub"));
        found.sort();
        keys.extend(found.iter().filter_map(|path| fs::read_to_string(path).ok()).map(|text| lines(&text)));
    }
    Ok(keys)
}

/// The lines of a file of keys, each with its end.
fn lines(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
}

/// Fetches the packages and everything that they depend on: files in an order in which they can be unpacked.
fn fetch(arch: Arch, wanted: &[String], mirror: &str) -> Result<Vec<PathBuf>> {
    let debian = debian::directory(arch)?;
    let _lock = cache::lock(&debian, "fetch")?;
    let apt = Apt::new(arch, &debian.join("apt"), SUITE, mirror)?;
    let known = apt.packages()?;
    if let Some(unknown) = wanted.iter().find(|name| known.iter().all(|package| package.name != **name)) {
        return Err(unknown_package(unknown, &known));
    }
    let required = known.iter().filter(|package| package.required).map(|package| &package.name[..]);
    // With a mirror that is reached by TLS, apt needs certificates.
    let certificates = mirror.starts_with("https:").then_some("ca-certificates");
    let base = base(arch)
        .into_iter()
        .filter(|name| *name != kernel(arch) || !wanted.iter().any(|name| name.starts_with("linux-image-") && !name.ends_with("-dbg")));
    let mut names: Vec<&str> = required.chain(base).chain(certificates).chain(wanted.iter().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    apt.download_with_dependencies(&names)
}

fn unknown_package(name: &str, known: &[Package]) -> anyhow::Error {
    let similar = known
        .iter()
        .map(|package| (strsim::damerau_levenshtein(name, &package.name), &package.name))
        .min()
        .filter(|(distance, _)| *distance <= 2)
        .map(|(_, similar)| format!("; did you mean {similar}?"))
        .unwrap_or_default();
    exit::usage(format!("--packages: Debian {SUITE} has no package \"{name}\"{similar}"))
}

/// Makes the archive of the root file system, the kernel and the initial RAM file system.
fn prepare(arch: Arch, packages: &[PathBuf], settings: &[Setting], paths: &Paths) -> Result<()> {
    let busybox = debian::busybox_for(arch, Freshness::Weekly)?;
    let busybox = fs::read(&busybox).with_context(|| format!("reading {}", busybox.display()))?;
    let task = Task::start(format!("reading {}", units::plural(packages.len(), "package")));
    let mut root = Root::create(&paths.archive, arch)?;
    for (index, package) in packages.iter().enumerate() {
        task.percent(100.0 * index as f64 / packages.len() as f64);
        root.package(package).with_context(|| format!("adding {}", package.display()))?;
    }
    for setting in settings {
        root.setting(setting)?;
    }
    let Some(kernel) = root.kernel() else { bail!("the packages contain no kernel") };
    fs::write(&paths.kernel, &kernel.image).context("writing the kernel")?;
    let setting = Setting::new(&format!("boot/initrd.img-{}", kernel.release), initrd::build(&busybox, &root, initrd::DISK, &[])?);
    root.setting(&setting)?;
    let files = [("architecture", debian::debian_name(arch).to_owned()), ("preinst", root.preinst().join("\n"))];
    let vm = initrd::build(&busybox, &root, configure::INIT, &files)?;
    fs::write(&paths.initrd, vm).context("writing the initial RAM file system")?;
    root.finish()
}

/// Creates an empty file system of `size` bytes.
fn file_system(path: &Path, size: u64, uuid: &str) -> Result<()> {
    File::create(path).and_then(|file| file.set_len(size)).with_context(|| format!("making {}", path.display()))?;
    // Programs for the administrator are not in every user's search path.
    let mut search = env::var_os("PATH").unwrap_or_default();
    search.push(OsString::from(":/usr/sbin:/sbin"));
    // The new file has zeroes only: none need to be written.
    let output = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-E", "assume_storage_prezeroed=1", "-U", uuid])
        .arg(path)
        .env("PATH", search)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| exit::lacking(format!("mke2fs can't be run ({error}): install the package e2fsprogs")))?;
    if !output.status.success() {
        bail!("mke2fs failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// A random UUID (RFC 9562, version 4).
fn uuid() -> Result<String> {
    let number = getrandom::u64().and_then(|high| Ok((u128::from(high) << 64) | u128::from(getrandom::u64()?)));
    let number = number.map_err(|error| anyhow::anyhow!("the system has no random numbers: {error}"))?;
    let number = number & !(0xf << 76) & !(0x3 << 62) | 4 << 76 | 2 << 62;
    let digits = format!("{number:032x}");
    Ok([&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hosts_come_from_files() {
        for (file, name) in [("web.qcow2", "web"), ("/a/My_Disk.tar.x", "my-disk"), ("ä.qcow2", "debian"), (".qcow2", "debian")] {
            assert_eq!(hostname(Path::new(file)), name, "{file}");
        }
    }

    #[test]
    fn random_uuids_have_their_version() {
        let uuid = uuid().unwrap();
        assert_eq!(uuid.len(), 36);
        assert_eq!(&uuid[14..15], "4");
        assert!(matches!(&uuid[19..20], "8" | "9" | "a" | "b"), "{uuid}");
    }

    #[test]
    fn keys_are_public_ones() {
        let dir = tempfile::tempdir().unwrap();
        let (public, private) = (dir.path().join("a.pub"), dir.path().join("a"));
        fs::write(&public, "\nssh-ed25519 AAAA me").unwrap();
        fs::write(&private, "-----BEGIN OPENSSH PRIVATE KEY-----\n").unwrap();
        assert_eq!(keys(&[public.clone(), public]).unwrap(), "ssh-ed25519 AAAA me\nssh-ed25519 AAAA me\n");
        assert_eq!(exit::status_of(&keys(&[private]).unwrap_err()), exit::USAGE);
        assert_eq!(exit::status_of(&keys(&[dir.path().join("none")]).unwrap_err()), exit::USAGE);
        let empty = dir.path().join("b.pub");
        fs::write(&empty, "\n").unwrap();
        assert!(keys(&[empty]).unwrap_err().to_string().contains("b.pub has no public key"));
    }

    #[test]
    fn room_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        room(dir.path(), 0, "x").unwrap();
        room(Path::new("/nowhere"), u64::MAX, "x").unwrap();
        let said = room(dir.path(), u64::MAX, "choose another directory").unwrap_err();
        assert_eq!(exit::status_of(&said), exit::USAGE);
        assert!(said.to_string().ends_with("free some, or choose another directory"), "{said}");
    }

    #[test]
    fn files_that_exist_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("web.qcow2");
        let target = Target::check(&file).unwrap();
        fs::write(dir.path().join("image"), "x").unwrap();
        target.place(&dir.path().join("image")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "x");
        assert!(Target::check(&file).is_err());
        // One that appears after the check.
        fs::write(dir.path().join("image"), "y").unwrap();
        assert_eq!(exit::status_of(&target.place(&dir.path().join("image")).unwrap_err()), exit::USAGE);
        assert_eq!(fs::read_to_string(&file).unwrap(), "x");
        assert!(Target::check(Path::new("/nowhere/web.qcow2")).is_err() && Target::check(Path::new("/")).is_err());
    }
}
