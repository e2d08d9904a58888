//! QEMU's program for disk images.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::exit;

/// The program.
const PROGRAM: &str = "qemu-img";

/// The Debian package.
const PACKAGE: &str = "qemu-utils";

/// Runs the program and returns its standard output.
///
/// # Errors
/// It is not installed, or fails: the error is its message.
pub fn run(arguments: &[&OsStr]) -> Result<Vec<u8>> {
    let output = Command::new(PROGRAM)
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| exit::lacking(format!("{PROGRAM} can't be run ({error}): install the package {PACKAGE}")))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{}", message.trim().trim_start_matches("qemu-img: "));
    }
    Ok(output.stdout)
}

/// Ensures that the program is installed.
///
/// # Errors
/// It is not.
pub fn ensure() -> Result<()> {
    run(&["--version".as_ref()]).map(|_| ())
}

/// Converts a raw image to qcow2, without its zeroes.
///
/// # Errors
/// The image can't be written.
pub fn to_qcow2(raw: &Path, to: &Path) -> Result<()> {
    let words = ["convert", "-f", "raw", "-O", "qcow2"].map(OsStr::new);
    run(&[&words[..], &[raw.as_os_str(), to.as_os_str()]].concat()).map(|_| ())
}
