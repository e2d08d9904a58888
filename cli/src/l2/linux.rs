//! Linux programs for guests: small, static, and built with Rust's own tools only.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::config::Arch;
use crate::{cargo, exit};

/// Rust's target for Linux programs.
const fn target(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => "aarch64-unknown-linux-musl",
        Arch::X86_64 => "x86_64-unknown-linux-musl",
    }
}

/// Builds the program in `guests/NAME` for Arm, and returns it.
///
/// # Errors
/// See [`build_for`].
pub fn build(name: &str) -> Result<Vec<u8>> {
    build_for(Arch::Aarch64, name)
}

/// Builds the program in `guests/NAME`, and returns it.
///
/// # Errors
/// It doesn't compile; the target's library is missing and can't be installed.
pub fn build_for(arch: Arch, name: &str) -> Result<Vec<u8>> {
    build_in(arch, &Path::new("guests").join(name), name)
}

/// Builds the program `name`, whose package is in `folder` of the repository, and returns it.
///
/// # Errors
/// See [`build_for`].
pub fn build_in(arch: Arch, folder: &Path, name: &str) -> Result<Vec<u8>> {
    build_one(arch, folder, name, name)
}

/// Builds the programs of the package `name`, which is in `folder` of the repository, and returns that with the name `wanted`.
///
/// # Errors
/// See [`build_for`].
pub fn build_one(arch: Arch, folder: &Path, name: &str, wanted: &str) -> Result<Vec<u8>> {
    let target = target(arch);
    need_target(target)?;
    let repository = cargo::repository();
    let mut command = cargo::locked("build", &repository.join(folder));
    command.args(["--release", "--target", target]).env("CARGO_TARGET_DIR", repository.join("target").join(name));
    let programs = cargo::build(command, name)?;
    let path: PathBuf = programs.into_iter().find(|(program, _)| program == wanted).with_context(|| format!("cargo made no {wanted}"))?.1;
    std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
}

/// Installs the target's library by rustup, if it is missing.
fn need_target(target: &str) -> Result<()> {
    let there = || cargo::sysroot().is_some_and(|sysroot| sysroot.join("lib/rustlib").join(target).exists());
    if !there() {
        let _ = Command::new("rustup").args(["target", "add", target]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    }
    if there() {
        return Ok(());
    }
    Err(exit::lacking(format!(
        "programs for Linux guests need Rust's library for {target}: run `rustup target add {target}`, or do without KVM's client, real work \
         and served disks"
    )))
}
