//! The tests of a disk with Debian: built, started, interrupted, and started again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::scenario::{Expect, NO_DIFFERENCE, Scenario};
use stile::child::end_with_parent;
use stile::config::Arch;
use stile::{cache, disk, exit};

/// A test: its name, the architecture, and the function.
type Test = (&'static str, Arch, fn() -> Result<(), String>);

/// The tests.
pub const TESTS: [Test; 3] = [
    ("disk/system", Arch::Aarch64, served),
    ("disk/data-survives", Arch::Aarch64, of_arm),
    ("pc/amd/disk/data-survives", Arch::X86_64, of_amd),
];

/// Age at which the built disk is thrown away, because Debian has newer packages.
const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);

/// Command that writes the file on the disk.
const WRITE: &str = "seq 1 200000 > /root/numbers; sync";

/// MD5 of the file.
const SUM: &str = "0e10426a1d5bddffcef02f1345787128";

/// Time-out in seconds of a start of the whole system, which takes the emulator 50 s of CPU time: beside builds and emulators with many
/// threads it has had a tenth of a CPU.
const START: u32 = 1500;

/// Commands that read the file, and examine the system and its network; they end with status 42.
const READ: &str = "md5sum /root/numbers; ip -4 -o addr show scope global | grep -o '10\\.0\\.2\\.15'; \
     dpkg -l | grep -q '^i[^i]' || echo all configured; \
     resolvectl status | grep -m 1 -o '+LLMNR'; exit 42";

/// The test on Arm.
fn of_arm() -> Result<(), String> {
    survives(Arch::Aarch64, "")
}

/// The test on AMD-V.
fn of_amd() -> Result<(), String> {
    survives(Arch::X86_64, "--arch x86_64 --cpu max")
}

/// Copies the system to a partition of the disk `to`.
fn copy(arch: Arch, to: &Path) -> Result<(), String> {
    let base = base(arch)?;
    disk::partition::with_system(&base, to).map_err(|error| format!("copying {}: {error:#}", base.display()))
}

/// Returns the scenario that starts the system with `arguments` and runs `command`, which must end with [`READ`].
fn reads(name: &str, arguments: &str, command: &str) -> Scenario {
    let expect = Expect {
        status: 42,
        output: vec![SUM.into(), "10.0.2.15\n".into(), "all configured\n".into(), "+LLMNR\n".into()],
        // One for each VM, the service VM included.
        notes: vec![NO_DIFFERENCE.into(); 2],
        ..Expect::default()
    };
    Scenario { timeout: START, expect, ..Scenario::new(name, arguments).with("--exec", command) }
}

/// Arguments of a machine whose service VM serves the disk and the network.
fn serving(disk: &Path) -> String {
    format!("--disk {},format=raw,served --net user,served --vcpus 1 --exits", disk.display())
}

/// Starts a system with a served disk and network: it gets an address, writes a file, and powers off. The file is then on the disk.
fn served() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let disk = dir.path().join("disk.img");
    copy(Arch::Aarch64, &disk)?;
    reads("system", &serving(&disk), &format!("{WRITE}; {READ}")).run()?;
    let numbers: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    if file(&disk, "/root/numbers")? == numbers { Ok(()) } else { Err("the disk's file has other content".into()) }
}

/// Reads a file of the partition's file system by debugfs, independently of Stile.
fn file(disk: &Path, path: &str) -> Result<String, String> {
    // Programs for the administrator are not in every user's search path.
    let search = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let volume = format!("{}?offset={}", disk.display(), disk::partition::START);
    let mut command = Command::new("debugfs");
    command.args(["-R", &format!("cat {path}"), &volume]).env("PATH", search).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("debugfs can't be run: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts the system on a disk's partition, writes a file on it, and ends by Ctrl-C; another machine, whose disk and network the service VM
/// serves, finds it, has an address, and ends by a power-off.
fn survives(arch: Arch, machine: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let disk = dir.path().join("disk.img");
    copy(arch, &disk)?;
    let arguments = format!("{machine} --disk {},format=raw --net user --vcpus 1 --exits", disk.display());
    let write = Scenario {
        timeout: START,
        expect: Expect {
            status: exit::LEFT,
            output: vec!["written\n".into()],
            notes: vec![NO_DIFFERENCE.into()],
            signal: Some(Signal::INT),
            ..Expect::default()
        },
        ..Scenario::new("write", &arguments).with("--exec", format!("{WRITE}; echo written; sleep 1000"))
    };
    write.run().map_err(|report| format!("writing: {report}"))?;
    reads("read", &format!("{machine} {}", serving(&disk)), READ).run().map_err(|report| format!("reading: {report}"))
}

/// A disk with the base packages, rebuilt if the cached one is missing or the scripts have changed.
pub fn base(arch: Arch) -> Result<PathBuf, String> {
    let dir = cache::dir().map_err(|error| format!("{error:#}"))?.join("disks");
    let prefix = |arch: Arch| format!("test-{arch}-");
    let file = dir.join(format!("{}{}.qcow2", prefix(arch), disk::recipe(arch)));
    let age = file.metadata().and_then(|about| about.modified()).ok().and_then(|made| made.elapsed().ok());
    if age.is_some_and(|age| age < FRESH) {
        return Ok(file);
    }
    // Including those of other scripts.
    for old in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
        let name = old.file_name().to_string_lossy().into_owned();
        let of_another = Arch::ALL.into_iter().any(|other| other != arch && name.starts_with(&prefix(other)));
        if name.starts_with("test-") && !of_another {
            std::fs::remove_file(old.path()).map_err(|error| format!("removing {}: {error}", old.path().display()))?;
        }
    }
    std::fs::create_dir_all(&dir).map_err(|error| format!("making {}: {error}", dir.display()))?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["disk", "create", "--arch", arch.name(), "--size", "2G", "--hostname", "test"]).arg(&file).stdin(Stdio::null());
    let status = end_with_parent(&mut command, Signal::TERM).status().map_err(|error| error.to_string())?;
    if status.success() { Ok(file) } else { Err(format!("`stile disk create` ended with {status}")) }
}
