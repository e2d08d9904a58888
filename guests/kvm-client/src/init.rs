//! What the first process does: each VM, or what else is to be done, in a process of its own, and then power-off.

use std::process::Command;
use std::time::Duration;

use crate::{CHILD, Error, arch};

/// A kernel that has just started still has things to do; they must not be measured.
const SETTLE: Duration = Duration::from_secs(5);

/// Runs the VMs of these names, and what a word and its argument ask for instead (`syscalls=128`). Returns only if the machine can't be
/// turned off.
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
    // SAFETY: a system call without pointers; nothing is left to be written anywhere.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
    Err(std::io::Error::last_os_error().into())
}
