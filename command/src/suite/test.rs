//! A test that can run beside others.

use std::process::{Command, Stdio};

use anyhow::Result;
use rustix::process::Signal;

use super::scenario::Scenario;
use stile::child::end_with_parent;
use stile::config::Arch;

/// A test that can run beside others.
pub struct Test {
    /// Its name, with slashes.
    pub name: String,
    /// The architecture whose emulator it needs, if any.
    pub arch: Option<Arch>,
    run: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

impl Test {
    /// A test that needs no emulator.
    pub fn of_host(name: String, run: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { name, arch: None, run: Box::new(run) }
    }

    /// A test that is a function.
    pub fn new(name: &str, arch: Arch, run: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { name: name.to_owned(), arch: Some(arch), run: Box::new(run) }
    }

    /// A scenario.
    pub fn scenario(scenario: Scenario) -> Self {
        Self { name: scenario.name.clone(), arch: Some(scenario.arch()), run: Box::new(move || scenario.run()) }
    }

    /// A scenario that is made when it runs, because files are built or fetched for it.
    pub fn made(name: &str, arch: Arch, make: impl Fn() -> Result<Scenario> + Send + Sync + 'static) -> Self {
        Self::new(name, arch, move || make().map_err(|error| format!("preparing it: {error:#}"))?.run())
    }

    /// Runs it. The error is a report for people.
    pub fn run(&self) -> Result<(), String> {
        (self.run)()
    }
}

/// Runs a program without input. The error is its output.
pub fn run_program(command: &mut Command) -> Result<(), String> {
    let ended = end_with_parent(command.stdin(Stdio::null()), Signal::TERM).output();
    let program = command.get_program().display();
    let output = ended.map_err(|error| format!("{program} does not run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    Err(format!("{text}{errors}{program} ended with {}", output.status))
}
