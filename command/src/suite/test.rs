//! A test that can run beside others.

use std::process::{Command, Stdio};

use anyhow::Result;
use rustix::process::Signal;

use super::scenario::Scenario;
use stile::child::end_with_parent;
use stile::config::Arch;
use stile::out;

/// An assertion of QEMU's that can fail when a PCI function's memory is switched on or off while another CPU accesses a device:
/// QEMU 10.0 frees the table of memory regions that this CPU still uses. Mended later (issue 3040 of QEMU's).
const QEMU_RACE: &str = "iotlb_to_section: Assertion";

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

    /// Runs it, once more if QEMU failed by [`QEMU_RACE`]. The error is a report for people.
    pub fn run(&self) -> Result<(), String> {
        let result = (self.run)();
        match result {
            Err(report) if report.contains(QEMU_RACE) => {
                out::note(format_args!("{}: QEMU failed by a race of its own ({QEMU_RACE}); once more", self.name));
                (self.run)()
            }
            result => result,
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The number of runs, and the result, of a test that fails with `report` in its first `failures` runs.
    fn run(failures: usize, report: &'static str) -> (usize, Result<(), String>) {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = runs.clone();
        let test = Test::of_host("a".into(), move || match counter.fetch_add(1, Ordering::Relaxed) {
            run if run < failures => Err(report.into()),
            _ => Ok(()),
        });
        let result = test.run();
        (runs.load(Ordering::Relaxed), result)
    }

    #[test]
    fn only_the_race_of_qemu_is_tried_again_and_once() {
        let race = "qemu: iotlb_to_section: Assertion `section_index < n' failed.";
        assert_eq!(run(1, race), (2, Ok(())));
        assert_eq!(run(2, race), (2, Err(race.into())));
        assert_eq!(run(1, "exit status 101"), (1, Err("exit status 101".into())));
    }
}
