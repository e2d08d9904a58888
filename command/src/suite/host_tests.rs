//! The host's tests. Each program of them is a test of the suite, so that they run beside the emulated machines.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde::Deserialize;

use super::test::Test;
use stile::cargo;
use stile::child::end_with_parent;

/// Name of the check that builds them, and prefix of their names.
pub const NAME: &str = "unit";

/// A line of cargo's `--message-format=json`.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Cargo's configuration in the repository.
#[derive(Deserialize)]
struct Config {
    env: BTreeMap<String, String>,
}

/// Variables that cargo would set for the programs.
///
/// # Errors
/// Cargo's configuration can't be read.
fn variables() -> Result<BTreeMap<String, String>, String> {
    let path = cargo::repository().join(".cargo/config.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("reading {}: {error}", path.display()))?;
    Ok(toml::from_str::<Config>(&text).map_err(|error| format!("{}: {error}", path.display()))?.env)
}

/// Builds the programs. Returns a test for each. Cargo's progress and errors are shown as it writes them.
///
/// # Errors
/// They don't compile.
pub fn build() -> Result<Vec<Test>, String> {
    let variables = variables()?;
    let mut command = cargo::locked("test", &cargo::repository());
    command.args(["--workspace", "--no-run", "--message-format=json-render-diagnostics"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = end_with_parent(&mut command, Signal::TERM).spawn().map_err(|error| format!("cargo does not run: {error}"))?;
    let output = child.stdout.take().ok_or("cargo has no output")?;
    let tests = BufReader::new(output).lines().map_while(Result::ok).filter_map(|line| test(&line, &variables)).collect();
    let status = child.wait().map_err(|error| format!("waiting for cargo: {error}"))?;
    if status.success() { Ok(tests) } else { Err(format!("cargo ended with {status}")) }
}

/// The test that a line of cargo's output is about.
fn test(line: &str, variables: &BTreeMap<String, String>) -> Option<Test> {
    let message: Message = serde_json::from_str(line).ok()?;
    let (program, target) = (message.executable?, message.target?);
    message.profile.filter(|profile| profile.test)?;
    let dir = message.manifest_path?.parent()?.to_owned();
    let variables = variables.clone();
    let package = dir.strip_prefix(cargo::repository()).unwrap_or(&dir).display().to_string();
    Some(Test::of_host(format!("{NAME}/{package}/{}", target.name), move || run(&program, &dir, &variables)))
}

/// Runs a program in its package's folder, as cargo does. The error is its output.
fn run(program: &Path, dir: &Path, variables: &BTreeMap<String, String>) -> Result<(), String> {
    let mut command = Command::new(program);
    command.current_dir(dir).env("CARGO_MANIFEST_DIR", dir).envs(variables).stdin(Stdio::null());
    let output =
        end_with_parent(&mut command, Signal::TERM).output().map_err(|error| format!("{} does not run: {error}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    Err(format!("{text}{errors}{} ended with {}", program.display(), output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_in_cargos_messages() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"{}/crates/bus/Cargo.toml","target":{{"name":"examples"}},"profile":{{"test":{test}}},"executable":{executable}}}"#,
                cargo::repository().display(),
            )
        };
        let test = |line: &str| test(line, &BTreeMap::new());
        assert_eq!(test(&line(true, r#""/examples-1""#)).unwrap().name, "unit/crates/bus/examples");
        assert!(test(&line(false, r#""/examples-1""#)).is_none(), "a program without tests");
        assert!(test(&line(true, "null")).is_none(), "a library");
        assert!(test(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn variables_are_those_of_cargos_configuration() {
        assert!(variables().unwrap().contains_key("RUST_MIN_STACK"));
    }

    #[test]
    fn a_failed_programs_output_is_reported() {
        let run = |program| run(Path::new(program), Path::new("/"), &BTreeMap::new());
        assert_eq!(run("/bin/true"), Ok(()));
        let report = run("/bin/false").unwrap_err();
        assert!(report.contains("/bin/false ended with exit status: 1"), "{report}");
    }
}
