//! Programs for Linux in the folder `guests`: small, static, and built with nothing but Rust's own tools.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{cargo, exit};

/// Their target.
const TARGET: &str = "aarch64-unknown-linux-musl";

/// Builds the program in `guests/NAME`, and returns it.
///
/// # Errors
/// It doesn't compile; the target's library is missing and can't be installed.
pub fn build(name: &str) -> Result<Vec<u8>> {
    need_target()?;
    let repository = cargo::repository();
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(repository.join("guests").join(name))
        .args(["build", "--release", "--target", TARGET])
        .env("CARGO_TARGET_DIR", repository.join("target").join(name));
    let programs = cargo::build(command, name)?;
    let path: PathBuf = programs.into_iter().find(|(program, _)| program == name).with_context(|| format!("cargo made no {name}"))?.1;
    std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
}

/// Has rustup install the library for the target, if it isn't there.
fn need_target() -> Result<()> {
    let there = || cargo::sysroot().is_some_and(|sysroot| sysroot.join("lib/rustlib").join(TARGET).exists());
    if !there() {
        let _ = Command::new("rustup").args(["target", "add", TARGET]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    }
    if there() {
        return Ok(());
    }
    Err(exit::lacking(format!(
        "programs for Linux need Rust's library for {TARGET}: run `rustup target add {TARGET}`, or measure without KVM and real work"
    )))
}
