//! QEMU's program for disk images.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::exit;

/// The program.
const PROGRAM: &str = "qemu-img";

/// The Debian package.
const PACKAGE: &str = "qemu-utils";

/// Runs the program with options and files, and returns its standard output.
///
/// # Errors
/// It is not installed, or fails: the error is its message.
pub fn run(options: &[&str], files: &[&Path]) -> Result<Vec<u8>> {
    let output = output(options, files)?;
    if !output.status.success() {
        bail!("{}", message(&output));
    }
    Ok(output.stdout)
}

/// Checks the consistency of a qcow2 image. Leaked clusters are not an error: a killed machine leaves some.
///
/// # Errors
/// The image is damaged, or in use: the error is the program's message.
pub fn check(file: &Path) -> Result<()> {
    /// qemu-img(1), "check": leaked clusters, but no other errors.
    const LEAKED: i32 = 3;
    let output = output(&["check", "-q", "-f", "qcow2"], &[file])?;
    if !output.status.success() && output.status.code() != Some(LEAKED) {
        bail!("{}", message(&output).lines().next().unwrap_or("qemu-img check failed"));
    }
    Ok(())
}

/// Checks that no machine uses a raw image: opens it for writing, and sends no request. Opening it for reading does not take the lock.
///
/// # Errors
/// The image is in use, or can't be written: the error is the program's message.
pub fn check_writable(file: &Path) -> Result<()> {
    run(&["bench", "-q", "-w", "-c", "0", "-f", "raw"], &[file]).map(|_| ())
}

fn output(options: &[&str], files: &[&Path]) -> Result<Output> {
    // A name that begins with a word and a colon would be a protocol, one that begins with a dash an option.
    let files: Vec<_> = files.iter().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf())).collect();
    Command::new(PROGRAM)
        .args(options)
        .args(files)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| exit::lacking(format!("{PROGRAM} can't be run ({error}): install the package {PACKAGE}")))
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("qemu-img: ").to_owned()
}

/// Ensures that the program is installed.
///
/// # Errors
/// It is not.
pub fn ensure() -> Result<()> {
    run(&["--version"], &[]).map(|_| ())
}

/// Converts a raw image to qcow2, without its zeroes.
///
/// # Errors
/// The image can't be written.
pub fn to_qcow2(raw: &Path, to: &Path) -> Result<()> {
    run(&["convert", "-f", "raw", "-O", "qcow2"], &[raw, to]).map(|_| ())
}

/// Bytes of an image's contents, whose lock is not respected. `start` and `length` are multiples of 512.
///
/// # Errors
/// The image can't be read.
pub fn part(image: &Path, format: &str, start: u64, length: u64) -> Result<Vec<u8>> {
    let to = tempfile::NamedTempFile::new().context("making a temporary file")?;
    let image = std::path::absolute(image)?;
    let image = image.to_str().context("the image's name is not UTF-8")?;
    let file = serde_json::json!({ "driver": format, "file": { "driver": "file", "filename": image } });
    let part = serde_json::json!({ "driver": "raw", "offset": start, "size": length, "file": file });
    run(&["convert", "-U", "-O", "raw", &format!("json:{part}")], &[to.path()])?;
    std::fs::read(to.path()).context("reading a temporary file")
}

/// Copies the contents of a qcow2 image to offset `start` of a raw image that has `length` bytes there.
///
/// # Errors
/// An image can't be read or written.
pub fn copy_into(image: &Path, raw: &Path, start: u64, length: u64) -> Result<()> {
    let raw = raw.to_str().context("the image's name is not UTF-8")?.replace(',', ",,");
    let target = format!("driver=raw,offset={start},size={length},file.driver=file,file.filename={raw}");
    // Options precede names.
    let image = std::path::absolute(image)?;
    let image = image.to_str().context("the image's name is not UTF-8")?;
    run(&["convert", "-n", "-f", "qcow2", "--target-image-opts", image, &target], &[]).map(|_| ())
}
