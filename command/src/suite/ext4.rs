//! A disk with an ext4 file system.

use std::fs;
use std::io::{Error, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// Size of the disk in bytes.
pub const SIZE: u64 = 8 << 20;

/// Writes a disk with an ext4 file system that has a file `hello`.
///
/// # Errors
/// mke2fs is missing or fails; the file can't be written.
pub fn write(path: &Path) -> Result<()> {
    let folder = path.with_extension("files");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("hello"), "hello from a disk\n")?;
    fs::File::create(path)?.set_len(SIZE)?;
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&folder).arg(path).stdin(Stdio::null());
    if command.status()?.success() { Ok(()) } else { Err(Error::other("mke2fs fails")) }
}
