//! Builds programs of this repository with cargo: the hypervisor and the test guests.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde::Deserialize;

use crate::child::{self, BuildProgress};
use crate::config::Arch;
use crate::exit;

/// The target of everything that runs on Arm without an operating system: no floating-point registers are used.
pub const TARGET: &str = "aarch64-unknown-none-softfloat";

/// The target for an architecture.
pub const fn target(arch: Arch) -> &'static str {
    match arch {
        Arch::Aarch64 => TARGET,
        Arch::X86_64 => "x86_64-unknown-none",
    }
}

/// The repository that this program was built from.
pub fn repository() -> PathBuf {
    let cli = Path::new(env!("CARGO_MANIFEST_DIR"));
    cli.parent().unwrap_or(cli).to_owned()
}

/// A command of cargo's, in `dir`, for programs of [`TARGET`].
pub fn cargo(subcommand: &str, dir: &Path) -> Command {
    cargo_for(Arch::Aarch64, subcommand, dir)
}

/// A cargo command in `dir`. Lock files are never changed: builds use the tested versions.
pub fn locked(subcommand: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(dir).args([subcommand, "--locked"]);
    command
}

/// A cargo command in `dir`, for bare-metal programs of an architecture.
///
/// If the toolchain has no library for the target (distributions' packages don't), `core` and `alloc` are
/// built from source.
pub fn cargo_for(arch: Arch, subcommand: &str, dir: &Path) -> Command {
    let target = target(arch);
    let mut command = locked(subcommand, dir);
    command.args(["--target", target]);
    if let Some(sysroot) = sysroot() {
        let libraries = sysroot.join("lib/rustlib");
        if !libraries.join(target).exists() {
            // The option is unstable, but the compiler is the same.
            command.arg("-Zbuild-std=core,alloc,compiler_builtins").env("RUSTC_BOOTSTRAP", "1");
        }
        if !has_linker(&libraries) {
            command.env(format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_")), "ld.lld");
        }
    }
    command
}

/// Folder of the compiler's libraries.
pub fn sysroot() -> Option<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).stderr(Stdio::null()).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    (!path.trim().is_empty()).then(|| PathBuf::from(path.trim()))
}

/// Whether the toolchain includes the target's linker.
fn has_linker(libraries: &Path) -> bool {
    std::fs::read_dir(libraries).into_iter().flatten().flatten().any(|host| host.path().join("bin/rust-lld").exists())
}

/// A line of cargo's `--message-format=json`.
#[derive(Deserialize)]
struct Message {
    reason: String,
    target: Option<Target>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    #[serde(default)]
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// A built program or loadable library.
#[derive(Debug)]
pub struct Artifact {
    /// Name of the target.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// The package's folder.
    pub folder: PathBuf,
    /// Whether it is a program of tests.
    pub is_test: bool,
}

impl Artifact {
    /// The artifact that a message is about, if any.
    fn of(message: Message) -> Option<Self> {
        let target = message.target?;
        let is_library = target.kind.iter().any(|kind| kind == "cdylib");
        let path = message.executable.or_else(|| message.filenames.into_iter().next().filter(|_| is_library))?;
        let folder = message.manifest_path.as_deref().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
        Some(Self { name: target.name, path, folder, is_test: message.profile.is_some_and(|profile| profile.test) })
    }
}

/// Runs `cargo build` and returns the built programs and loadable libraries, with their names. Shows progress
/// only if there is something to build.
///
/// # Errors
/// The build fails; the compiler's messages are in the error.
pub fn build(command: Command, what: &str) -> Result<Vec<(String, PathBuf)>> {
    Ok(artifacts(command, what)?.into_iter().map(|artifact| (artifact.name, artifact.path)).collect())
}

/// Runs `cargo build` or `cargo test --no-run`, as [`build`] does.
///
/// # Errors
/// The build fails; the compiler's messages are in the error.
pub fn artifacts(mut command: Command, what: &str) -> Result<Vec<Artifact>> {
    let mut child = child::end_with_parent(&mut command, Signal::TERM)
        .env("CARGO_TERM_PROGRESS_WHEN", "always")
        .env("CARGO_TERM_PROGRESS_WIDTH", "100")
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| exit::lacking(format!("cargo does not run ({error}): install a Rust toolchain")))?;
    let cargo = BuildProgress::building(what);
    let errors = child::errors_of_cargo(&mut child, cargo.clone());
    let mut artifacts = Vec::new();
    for line in BufReader::new(child.stdout.take().context("cargo has no output")?).lines() {
        let Ok(message) = serde_json::from_str::<Message>(&line?) else { continue };
        if message.reason == "compiler-artifact" {
            artifacts.extend(Artifact::of(message));
        }
    }
    let status = child.wait().context("waiting for cargo")?;
    let errors = errors.join().unwrap_or_default();
    BuildProgress::end(&cargo);
    if !status.success() {
        bail!("building {what} failed:\n{}", errors.trim_end());
    }
    Ok(artifacts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_are_found_in_messages() {
        let artifact = |line: &str| serde_json::from_str(line).ok().and_then(Artifact::of);
        let line = |kind: &str, executable: &str, filename: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/crates/bus/Cargo.toml","target":{{"name":"bus","kind":["{kind}"]}},"profile":{{"test":true}},"executable":{executable},"filenames":["{filename}"]}}"#
            )
        };
        let program = artifact(&line("test", r#""/bus-1""#, "/bus-1")).unwrap();
        assert_eq!((&program.name[..], &program.path, &program.folder), ("bus", &PathBuf::from("/bus-1"), &PathBuf::from("/crates/bus")));
        assert!(program.is_test);
        assert_eq!(artifact(&line("cdylib", "null", "/libbus.so")).unwrap().path, Path::new("/libbus.so"));
        assert!(artifact(&line("lib", "null", "/libbus.rlib")).is_none(), "a library");
        assert!(artifact(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
