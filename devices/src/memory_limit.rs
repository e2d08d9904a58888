//! Limits of back ends' memory and processes: a control group for each device (Linux's documentation, "Control Group v2").

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use crate::mounting::mount;

/// Folder of the groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Memory of a device's back end in bytes, with the kernel's for it and files in memory that it writes. `qemu-storage-daemon` keeps up to
/// 32 MiB of an image's tables.
const MEMORY: u64 = 96 << 20;

/// Threads of a device's back end. `qemu-storage-daemon` has 64 of them for requests.
const THREADS: u32 = 128;

/// Makes groups with limits possible. Does nothing where they are.
///
/// # Errors
/// The kernel has none.
pub fn prepare() -> io::Result<()> {
    let groups = Path::new(GROUPS);
    if !groups.join("cgroup.procs").exists() {
        mount(["-t", "cgroup2", "-o", "nosuid,nodev,noexec", "cgroup2", GROUPS].map(OsStr::new))?;
    }
    fs::write(groups.join("cgroup.subtree_control"), "+memory +pids")
}

/// Moves this process into the group of a device's user. If the group wants more memory, the kernel ends all of its processes.
///
/// # Errors
/// The kernel has no such groups; this process is not root's.
pub fn enter(user: u32) -> io::Result<()> {
    let group = Path::new(GROUPS).join(format!("stile-devices-{user}"));
    match fs::create_dir(&group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::write(group.join("memory.max"), MEMORY.to_string())?;
    fs::write(group.join("memory.oom.group"), "1")?;
    fs::write(group.join("pids.max"), THREADS.to_string())?;
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}
