//! Builds the hypervisor.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cargo;
use crate::config::Arch;
use crate::image::Hypervisor;

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

/// Builds the hypervisor for an architecture, and reads it. On x86-64 it is two programs, with VMX and with AMD-V, of which the image
/// chooses one when it starts.
///
/// # Errors
/// It doesn't compile, or can't be read.
pub fn make(arch: Arch) -> Result<Hypervisor> {
    let hypervisor = read(&build_for(arch)?)?;
    if arch != Arch::X86_64 {
        return Ok(hypervisor);
    }
    // A profile of its own: the two programs do not replace each other.
    let other = read(&build_with(arch, &["--profile", "hypervisor-svm", "--features", "svm"])?)?;
    hypervisor.with_other(other).context("putting the programs with VMX and with AMD-V together")
}

fn read(elf: &Path) -> Result<Hypervisor> {
    let bytes = fs::read(elf).with_context(|| format!("reading {}", elf.display()))?;
    Hypervisor::from_elf(&bytes).with_context(|| format!("reading {}", elf.display()))
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
