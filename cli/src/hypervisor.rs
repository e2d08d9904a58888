//! Builds the hypervisor.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cargo;
use crate::config::Arch;

/// The hypervisor's package and program.
const PACKAGE: &str = "stile-hypervisor";

/// Builds the hypervisor for Arm: see [`build_for`].
///
/// # Errors
/// It doesn't compile.
pub fn build() -> Result<PathBuf> {
    build_for(Arch::Aarch64)
}

/// Builds the hypervisor for an architecture if it isn't up to date, and returns its ELF file.
///
/// # Errors
/// It doesn't compile.
pub fn build_for(arch: Arch) -> Result<PathBuf> {
    let mut command = cargo::cargo_for(arch, "build", &cargo::repository());
    command.args(["--package", PACKAGE, "--profile", "hypervisor"]);
    cargo::build(command, "the hypervisor")?
        .into_iter()
        .find(|(name, _)| name == PACKAGE)
        .map(|(_, path)| path)
        .context("cargo made no hypervisor")
}
