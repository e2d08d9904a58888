//! The host's tests. Each program of them is a test of the suite, so that they run beside the emulated machines.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::test::{Test, run_program};
use stile::cargo::{self, Artifact};

/// Name of the check that builds them, and prefix of their names.
pub const NAME: &str = "unit";

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

/// Builds the programs. Returns a test for each.
///
/// # Errors
/// They don't compile, or cargo's configuration can't be read.
pub fn build() -> Result<Vec<Test>, String> {
    let variables = variables()?;
    let mut command = cargo::locked("test", &cargo::repository());
    command.args(["--workspace", "--no-run"]);
    let artifacts = cargo::artifacts(command, "the host's tests").map_err(|error| format!("{error:#}"))?;
    Ok(artifacts.into_iter().filter_map(|artifact| test(artifact, &variables)).collect())
}

/// The test that is an artifact, if any.
fn test(artifact: Artifact, variables: &BTreeMap<String, String>) -> Option<Test> {
    let Artifact { name, path, folder, .. } = artifact.is_test.then_some(artifact)?;
    let variables = variables.clone();
    let package = folder.strip_prefix(cargo::repository()).unwrap_or(&folder).display().to_string();
    Some(Test::of_host(format!("{NAME}/{package}/{name}"), move || run(&path, &folder, &variables)))
}

/// Runs a program in its package's folder, as cargo does. The error is its output.
fn run(program: &Path, dir: &Path, variables: &BTreeMap<String, String>) -> Result<(), String> {
    let mut command = Command::new(program);
    command.current_dir(dir).env("CARGO_MANIFEST_DIR", dir).envs(variables);
    run_program(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_tests() {
        let test = |is_test: bool| {
            let (name, path, folder) = ("examples".to_owned(), "/examples-1".into(), cargo::repository().join("crates/bus"));
            test(Artifact { name, path, folder, is_test }, &BTreeMap::new())
        };
        assert_eq!(test(true).unwrap().name, "unit/crates/bus/examples");
        assert!(test(false).is_none(), "a program without tests");
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
