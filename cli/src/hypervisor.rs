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
    build_with(arch, &["--profile", "hypervisor"])
}

/// Builds the hypervisor for CPUs of a model, as [`build_for`] does: on x86-64 the back end for VMX or for AMD-V.
///
/// # Errors
/// It doesn't compile.
pub fn build_for_model(arch: Arch, cpu_model: &str) -> Result<PathBuf> {
    // A profile of its own: the two programs do not replace each other.
    if arch.has_amd_v(cpu_model) { build_with(arch, &["--profile", "hypervisor-svm", "--features", "svm"]) } else { build_for(arch) }
}

fn build_with(arch: Arch, arguments: &[&str]) -> Result<PathBuf> {
    let mut command = cargo::cargo_for(arch, "build", &cargo::repository());
    command.args(["--package", PACKAGE]).args(arguments);
    cargo::build(command, "the hypervisor")?
        .into_iter()
        .find(|(name, _)| name == PACKAGE)
        .map(|(_, path)| path)
        .context("cargo made no hypervisor")
}
