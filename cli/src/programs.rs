//! The test guests' programs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cargo;
use crate::config::Arch;

/// Last line of a guest whose tests all passed.
pub const PASSED: &str = "EXIT: STATUS=0";

/// The guests' programs for an architecture, by name.
pub struct Programs {
    /// Theirs.
    pub arch: Arch,
    /// `None`: they are not built.
    paths: Option<BTreeMap<String, PathBuf>>,
}

impl Programs {
    /// Builds them.
    ///
    /// # Errors
    /// They don't compile.
    pub fn build(arch: Arch) -> Result<Self> {
        let (folder, package) = match arch {
            Arch::Aarch64 => ("guests", "suites"),
            Arch::X86_64 => ("guests/pc", "pc"),
        };
        let repository = cargo::repository();
        let mut command = cargo::cargo_for(arch, "build", &repository.join(folder));
        command.args(["--release", "--package", package]).env("CARGO_TARGET_DIR", repository.join("target").join(folder));
        let paths = cargo::build(command, &format!("the test guests for {}", arch.name()))?.into_iter().collect();
        Ok(Self { arch, paths: Some(paths) })
    }

    /// Programs that are not built, with their names as their paths: for lists of scenarios.
    pub const fn unbuilt(arch: Arch) -> Self {
        Self { arch, paths: None }
    }

    /// The path of one.
    ///
    /// # Errors
    /// No program of this name.
    pub fn path(&self, name: &str) -> Result<String> {
        let Some(paths) = &self.paths else { return Ok(name.to_owned()) };
        let path = paths.get(name).with_context(|| format!("there is no test guest called {name}"))?;
        Ok(path.display().to_string())
    }

    /// The name of a scenario with them.
    pub fn scenario(&self, name: &str) -> String {
        if self.arch == Arch::X86_64 { format!("pc/{name}") } else { name.to_owned() }
    }
}
