//! The tests of a disk with Debian: built, started, interrupted, and started again.

use std::path::PathBuf;
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
pub const TESTS: [Test; 2] = [("disk/data-survives", Arch::Aarch64, of_arm), ("pc/amd/disk/data-survives", Arch::X86_64, of_amd)];

/// Age at which the built disk is thrown away, because Debian has newer packages.
const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);

/// MD5 of the file on the disk, the output of `seq 1 200000`.
const SUM: &str = "0e10426a1d5bddffcef02f1345787128";

/// Time-out in seconds of a start of the whole system, which takes the emulator 50 s of CPU time: beside builds and emulators with many
/// threads it has had a tenth of a CPU.
const START: u32 = 1500;

/// The test on Arm.
fn of_arm() -> Result<(), String> {
    survives(Arch::Aarch64, "")
}

/// The test on AMD-V.
fn of_amd() -> Result<(), String> {
    survives(Arch::X86_64, "--arch x86_64 --cpu max")
}

/// Starts the system on a disk's partition, writes a file on it, and ends by Ctrl-C; another machine, whose disk and network the service VM
/// serves, finds it, has an address, and ends by a power-off.
fn survives(arch: Arch, machine: &str) -> Result<(), String> {
    let base = base(arch)?;
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let disk = dir.path().join("disk.img");
    disk::partition::with_system(&base, &disk).map_err(|error| format!("copying {}: {error:#}", base.display()))?;
    let arguments = |more: &str| format!("{machine} --disk {},format=raw{more} --vcpus 1 --exits", disk.display());
    let write = Scenario {
        timeout: START,
        expect: Expect {
            status: exit::LEFT,
            output: vec!["written\n".into()],
            notes: vec![NO_DIFFERENCE.into()],
            signal: Some(Signal::INT),
            ..Expect::default()
        },
        ..Scenario::new("write", &arguments(" --net user")).with("--exec", "seq 1 200000 > /root/numbers; sync; echo written; sleep 1000")
    };
    let read = Scenario {
        timeout: START,
        expect: Expect {
            status: 42,
            output: vec![SUM.into(), "10.0.2.15\n".into(), "all configured\n".into(), "+LLMNR\n".into()],
            // One for each VM, the service VM included.
            notes: vec![NO_DIFFERENCE.into(); 2],
            ..Expect::default()
        },
        ..Scenario::new("read", &arguments(",served --net user,served")).with(
            "--exec",
            "md5sum /root/numbers; ip -4 -o addr show scope global | grep -o '10\\.0\\.2\\.15'; \
             dpkg -l | grep -q '^i[^i]' || echo all configured; \
             resolvectl status | grep -m 1 -o '+LLMNR'; exit 42",
        )
    };
    write.run().map_err(|report| format!("writing: {report}"))?;
    read.run().map_err(|report| format!("reading: {report}"))
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
