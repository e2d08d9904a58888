//! The init process: runs each VM or measurement in its own process, then powers off.

use std::process::Command;
use std::time::Duration;

use crate::arch;
use crate::error::Error;

/// The argument with which this program runs a single VM.
pub const CHILD: &str = "vm";

/// Time for a newly booted kernel to become idle, so that its work is not measured.
const SETTLE: Duration = Duration::from_secs(5);

/// Start of a group's member that is no VM but a pause, of this many milliseconds, before the next member starts.
const WAIT: &str = "wait=";

/// Runs the VMs with these names, those with a `+` between them at the same time, or measurements given as
/// `WORD=ARGUMENT` (`syscalls=128`). A name or group that ends with `*COUNT` runs COUNT times; a VM whose name ends with
/// `@CPU` has all its vCPUs on that CPU. Then powers off; returns only if that fails.
pub fn run(names: &[String]) -> Result<(), Error> {
    if let Err(error) = run_all(names) {
        println!("kvm-client: {error}");
    }
    // SAFETY: a system call without pointers; no output is pending.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
    Err(std::io::Error::last_os_error().into())
}

fn run_all(names: &[String]) -> Result<(), Error> {
    arch::prepare_host()?;
    std::thread::sleep(SETTLE);
    for name in names {
        let (group, count) = name.split_once('*').unwrap_or((name, "1"));
        for _ in 0..count.parse::<u32>()? {
            run_group(group)?;
        }
    }
    Ok(())
}

fn run_group(group: &str) -> Result<(), Error> {
    let start = |name| {
        let (word, argument) = str::split_once(name, '=').unwrap_or((CHILD, name));
        Command::new("/init").args([word, argument]).spawn()
    };
    let mut children = Vec::new();
    for member in group.split('+') {
        match member.strip_prefix(WAIT) {
            Some(milliseconds) => std::thread::sleep(Duration::from_millis(milliseconds.parse()?)),
            None => children.push(start(member)?),
        }
    }
    for mut child in children {
        let status = child.wait()?;
        if !status.success() {
            println!("kvm-client: {group} ended with {status}");
        }
    }
    Ok(())
}
