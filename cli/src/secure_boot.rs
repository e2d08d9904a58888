//! Signatures of EFI programs for Secure Boot, by sbsign (package sbsigntool).

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::args::SignArgs;
use crate::exit;

/// The program that signs, and its Debian package.
const PROGRAM: &str = "sbsign";
const PACKAGE: &str = "sbsigntool";

/// Checks what would fail after minutes of building.
///
/// # Errors
/// A file can't be read, or sbsign is missing.
pub fn check(args: &SignArgs) -> Result<()> {
    let Some((key, certificate)) = files(args) else { return Ok(()) };
    for (option, file) in [("--sign", key), ("--cert", certificate)] {
        fs::File::open(file).map_err(|error| exit::usage(format!("{option}: {}: {error}", file.display())))?;
    }
    Command::new(PROGRAM).arg("--version").output().map(drop).map_err(lacking)
}

/// Returns the EFI program with a signature, if one is wanted. sbsign asks for the key's passphrase.
///
/// # Errors
/// sbsign is missing or fails: the key is not the certificate's, or a file has another format than PEM.
pub fn sign(args: &SignArgs, program: Vec<u8>) -> Result<Vec<u8>> {
    let Some((key, certificate)) = files(args) else { return Ok(program) };
    let files = tempfile::tempdir().context("making a temporary directory")?;
    let [plain, signed] = ["plain.efi", "signed.efi"].map(|name| files.path().join(name));
    fs::write(&plain, program)?;
    let output = Command::new(PROGRAM)
        .arg("--key")
        .arg(key)
        .arg("--cert")
        .arg(certificate)
        .arg("--output")
        .args([&signed, &plain])
        .output()
        .map_err(lacking)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it does not say why");
        return Err(exit::usage(format!("--sign: {PROGRAM} fails with {} and {}: {why}", key.display(), certificate.display())));
    }
    fs::read(&signed).context("reading the signed program")
}

fn files(args: &SignArgs) -> Option<(&Path, &Path)> {
    args.sign.as_deref().zip(args.cert.as_deref())
}

fn lacking(error: std::io::Error) -> anyhow::Error {
    exit::lacking(format!("{PROGRAM} can't be run ({error}): install the package {PACKAGE}"))
}
