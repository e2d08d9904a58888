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

/// Checks what would fail after minutes of building. Leaves pipes to sbsign: reading would consume their contents.
///
/// # Errors
/// A file can't be read or is not PEM of the expected kind, or sbsign is missing.
pub fn check(args: &SignArgs) -> Result<()> {
    let Some((key, certificate)) = files(args) else { return Ok(()) };
    for (option, file, what, label) in
        [("--sign", key, "private key", "PRIVATE KEY-----"), ("--cert", certificate, "certificate", "CERTIFICATE-----")]
    {
        let refuse = |error| exit::usage(format!("{option}: {}: {error}", file.display()));
        // Not of the open file: a FIFO's writer goes on once a reader has opened it.
        let kind = fs::metadata(file).map_err(refuse)?.file_type();
        if !kind.is_file() && !kind.is_dir() {
            continue;
        }
        let bytes = fs::read(file).map_err(refuse)?;
        if !String::from_utf8_lossy(&bytes).contains(label) {
            return Err(exit::usage(format!(
                "{option}: {} has no {what} in the format PEM; openssl converts other formats",
                file.display()
            )));
        }
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
        let why = reason(&String::from_utf8_lossy(&output.stderr));
        return Err(exit::usage(format!("--sign: {PROGRAM} fails with {} and {}: {why}", key.display(), certificate.display())));
    }
    fs::read(&signed).context("reading the signed program")
}

/// Returns the reason for which sbsign failed: its own message, followed by the first error in OpenSSL's queue.
fn reason(said: &str) -> String {
    /// Starts of lines that are no errors: progress, warnings, and prompts for a passphrase.
    const OTHERS: [&str; 3] = ["Signing ", "warning: ", "Enter "];
    let mut own = said.lines().map(str::trim).filter(|line| !line.is_empty() && !OTHERS.iter().any(|other| line.starts_with(other)));
    let Some(own) = own.next() else { return "it does not say why".into() };
    // THREAD:error:CODE:LIBRARY:FUNCTION:REASON:FILE:LINE:DATA
    let detail = said.lines().find_map(|line| line.split_once(":error:")?.1.split(':').nth(3));
    detail.filter(|detail| !own.contains(detail)).map_or_else(|| own.to_owned(), |detail| format!("{own}: {detail}"))
}

fn files(args: &SignArgs) -> Option<(&Path, &Path)> {
    args.sign.as_deref().zip(args.cert.as_deref())
}

fn lacking(error: std::io::Error) -> anyhow::Error {
    exit::lacking(format!("{PROGRAM} can't be run ({error}): install the package {PACKAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_error() {
        let mismatch = "Signing Unsigned original image\nerror in key/certificate chain\n\
            40DE:error:05800074:x509 certificate routines:X509_check_private_key:key values mismatch:../x509_cmp.c:403:\n";
        assert_eq!(reason(mismatch), "error in key/certificate chain: key values mismatch");
        let no_passphrase = "Enter PEM pass phrase:\nCan't load key from file 'p.key'\n\
            40DE:error:1400006B:UI routines:UI_process:processing error:../ui_lib.c:573:while reading strings\n";
        assert_eq!(reason(no_passphrase), "Can't load key from file 'p.key': processing error");
        assert_eq!(reason("Invalid header\n"), "Invalid header");
        assert_eq!(reason("Signing Unsigned original image\n\n"), "it does not say why");
    }

    #[test]
    fn files_of_other_kinds_are_refused_before_the_build() {
        let dir = tempfile::tempdir().unwrap();
        let mistake = |key: &str, certificate: &str| {
            let [sign, cert] = [("db.key", key), ("db.pem", certificate)].map(|(name, text)| {
                let path = dir.path().join(name);
                fs::write(&path, text).unwrap();
                Some(path)
            });
            check(&SignArgs { sign, cert }).unwrap_err().to_string()
        };
        let (key, certificate) = ("-----BEGIN RSA PRIVATE KEY-----\n", "-----BEGIN CERTIFICATE-----\n");
        assert!(mistake("", certificate).contains("db.key has no private key in the format PEM"));
        assert!(mistake(certificate, key).contains("db.key has no private key in the format PEM"));
        assert!(mistake(key, "\x30\x03").contains("db.pem has no certificate in the format PEM"));
        let folder = SignArgs { sign: Some(dir.path().to_owned()), cert: Some(dir.path().join("db.pem")) };
        assert!(check(&folder).unwrap_err().to_string().starts_with("--sign: "));
    }

    #[test]
    fn pipes_are_left_to_sbsign() {
        use std::io::{Read, Write};
        use std::os::fd::AsRawFd;
        let dir = tempfile::tempdir().unwrap();
        let cert = dir.path().join("db.pem");
        fs::write(&cert, "-----BEGIN CERTIFICATE-----\n").unwrap();
        let key = "-----BEGIN PRIVATE KEY-----\n";
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(key.as_bytes()).unwrap();
        drop(writer);
        let sign = Some(format!("/dev/fd/{}", reader.as_raw_fd()).into());
        // sbsign may be missing here.
        let _ = check(&SignArgs { sign, cert: Some(cert) });
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, key);
    }
}
