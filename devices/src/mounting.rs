//! Mounts of file systems, by the system's own program.

use std::ffi::OsStr;
use std::io;
use std::process::{Command, Stdio};

/// Calls `mount` with these arguments.
///
/// # Errors
/// There is no such program; it fails, and has said why.
pub fn mount<const N: usize>(arguments: [&OsStr; N]) -> io::Result<()> {
    let status = Command::new("mount").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("mount failed ({status})"))) }
}
