//! The init process: runs each VM or measurement in its own process, then powers off.

use std::process::Command;
use std::time::Duration;

use crate::{CHILD, Error, arch};

/// Time for a newly booted kernel to become idle, so that its work is not measured.
const SETTLE: Duration = Duration::from_secs(5);

/// Runs the VMs with these names, or measurements given as `WORD=ARGUMENT` (`syscalls=128`). Returns only if
/// the power-off fails.
pub fn run(names: &[String]) -> Result<(), Error> {
    arch::prepare_host()?;
    std::thread::sleep(SETTLE);
    for name in names {
        let (word, argument) = name.split_once('=').unwrap_or((CHILD, name));
        let status = Command::new("/init").args([word, argument]).status()?;
        if !status.success() {
            println!("kvm-client: {name} ended with {status}");
        }
    }
    // SAFETY: a system call without pointers; no output is pending.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
    Err(std::io::Error::last_os_error().into())
}
