//! The tests that are commands of cargo's: formatting and lints.

use std::process::Command;

use super::test::run_program;
use stile::cargo;
use stile::config::Arch;

/// A run of cargo.
pub struct Check {
    /// The test's name.
    pub name: &'static str,
    command: fn() -> Command,
}

/// All of them, in the order in which they run.
pub fn all() -> Vec<Check> {
    vec![
        Check { name: "format/workspace", command: || format("") },
        Check { name: "format/guests", command: || format("guests") },
        Check {
            name: "lint/host",
            command: || {
                let arguments = ["--workspace", "--all-targets", "--all-features", "--quiet", "--", "-D", "warnings"];
                host("clippy", &arguments, "")
            },
        },
        Check {
            name: "lint/hypervisor",
            command: || bare(Arch::Aarch64, "clippy", &["--package", "stile-hypervisor", "--quiet", "--", "-D", "warnings"], ""),
        },
        Check {
            name: "lint/hypervisor-x86",
            command: || bare(Arch::X86_64, "clippy", &["--package", "stile-hypervisor", "--quiet", "--", "-D", "warnings"], ""),
        },
        Check {
            name: "lint/hypervisor-svm",
            command: || {
                let arguments = ["--package", "stile-hypervisor", "--features", "svm", "--quiet", "--", "-D", "warnings"];
                bare(Arch::X86_64, "clippy", &arguments, "")
            },
        },
        Check {
            name: "lint/guest-pc",
            command: || bare(Arch::X86_64, "clippy", &["--bins", "--quiet", "--", "-D", "warnings"], "guests/pc"),
        },
        Check {
            name: "lint/guest-probe-x86",
            command: || bare(Arch::X86_64, "clippy", &["--package", "probe", "--quiet", "--", "-D", "warnings"], "guests"),
        },
        // The default members: the guests for Arm.
        Check { name: "lint/guests", command: || bare(Arch::Aarch64, "clippy", &["--bins", "--quiet", "--", "-D", "warnings"], "guests") },
    ]
}

impl Check {
    /// Runs the command. The error is its output.
    pub fn run(&self) -> Result<(), String> {
        run_program(&mut (self.command)())
    }
}

fn host(subcommand: &str, arguments: &[&str], dir: &str) -> Command {
    let mut command = cargo::locked(subcommand, &cargo::repository().join(dir));
    command.args(arguments);
    targets(&mut command, dir);
    command
}

/// Formats nothing: compares all members of the workspace in `dir` with their formatted text.
fn format(dir: &str) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(cargo::repository().join(dir)).args(["fmt", "--all", "--check"]);
    command
}

fn bare(arch: Arch, subcommand: &str, arguments: &[&str], dir: &str) -> Command {
    let mut command = cargo::cargo_for(arch, subcommand, &cargo::repository().join(dir));
    command.args(arguments);
    targets(&mut command, dir);
    command
}

/// Everything that is built stays in the repository's one target directory.
fn targets(command: &mut Command, dir: &str) {
    if !dir.is_empty() {
        command.env("CARGO_TARGET_DIR", cargo::repository().join("target").join(dir));
    }
}
