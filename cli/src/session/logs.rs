//! The files of `--log DIR`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;
use stile_wire::Event;

use super::exits::Exits;
use crate::budget::Usage;

/// Unfiltered logs of a run; none without a directory. A write error does not end the run.
#[derive(Debug, Default)]
pub struct Logs {
    files: Option<Files>,
    /// The first failure.
    failure: Option<String>,
    /// Whether the user has been notified.
    told: bool,
}

#[derive(Debug)]
struct Files {
    directory: PathBuf,
    start: Instant,
    consoles: Vec<Log>,
    stile: Log,
    emulator: Log,
    events: Log,
}

/// A log file.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    fn create(path: PathBuf) -> Result<Self> {
        let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self { path, file })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.file.write_all(bytes).map_err(|error| format!("{} is incomplete: {error}", self.path.display()))
    }
}

/// A line of `events.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since the emulator was started.
    seconds: f64,
    /// The VM whose Stile sent it; empty for the machine's own.
    #[serde(skip_serializing_if = "str::is_empty")]
    stile: &'a str,
    event: Value,
}

impl Logs {
    /// Makes the files in `dir`: `NAME.console.log` for each VM, `stile.log`, `emulator.log` (which starts with `command`, the emulator's
    /// command line) and `events.jsonl`.
    ///
    /// # Errors
    /// The directory or a file can't be made.
    pub fn create<'a>(dir: &Path, names: impl Iterator<Item = &'a str>, command: &str) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let create = |name: &str| Log::create(dir.join(name));
        let emulator = create("emulator.log")?;
        let consoles = names.map(|name| create(&format!("{name}.console.log"))).collect::<Result<_>>()?;
        let (stile, events) = (create("stile.log")?, create("events.jsonl")?);
        let files = Files { directory: dir.to_owned(), start: Instant::now(), consoles, stile, emulator, events };
        let mut logs = Self { files: Some(files), ..Self::default() };
        logs.emulator(format!("{command}\n").as_bytes());
        Ok(logs)
    }

    /// Makes the file of a console that the machine gets while it runs. One of the same name is continued.
    pub fn add(&mut self, name: &str) {
        self.write(|files| {
            let path = files.directory.join(format!("{name}.console.log"));
            let file = File::options().create(true).append(true).open(&path);
            let file = file.map_err(|error| format!("{} can't be made: {error}", path.display()))?;
            files.consoles.push(Log { path, file });
            Ok(())
        });
    }

    /// The reason if a log is incomplete.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The failure, if the user has not been notified yet.
    pub fn take_news(&mut self) -> Option<String> {
        let told = std::mem::replace(&mut self.told, self.failure.is_some());
        self.failure.clone().filter(|_| !told)
    }

    /// Output of the console with index `vm`.
    pub fn console(&mut self, vm: usize, bytes: &[u8]) {
        self.write(|files| files.consoles.get_mut(vm).map_or(Ok(()), |log| log.write(bytes)));
    }

    /// Stile's own log.
    pub fn stile(&mut self, bytes: &[u8]) {
        self.write(|files| files.stile.write(bytes));
    }

    /// Output of the emulator on its standard error.
    pub fn emulator(&mut self, bytes: &[u8]) {
        self.write(|files| files.emulator.write(bytes));
    }

    /// Records a message of the Stile in a VM, or, with an empty name, of the machine's own; `exits` has the
    /// names of rows.
    pub fn event(&mut self, stile: &str, event: &Event, exits: &Exits) {
        // One for every few KiB of a transfer.
        if matches!(event, Event::Uploaded { .. }) {
            return;
        }
        self.write(|files| {
            let seconds = files.start.elapsed().as_secs_f64();
            let line = exits.named(event).and_then(|event| serde_json::to_string(&Line { seconds, stile, event }));
            let line = line.map_err(|error| error.to_string())?;
            files.events.write(format!("{line}\n").as_bytes())
        });
    }

    /// Records that a VM's budget began to be exceeded, or is kept again.
    pub fn budget(&mut self, usage: &Usage) {
        self.write(|files| {
            let seconds = files.start.elapsed().as_secs_f64();
            let event = if usage.exceeded { "BudgetExceeded" } else { "BudgetKept" };
            let line = serde_json::to_string(&Line { seconds, stile: "", event: serde_json::json!({ event: usage }) });
            files.events.write(format!("{}\n", line.map_err(|error| error.to_string())?).as_bytes())
        });
    }

    fn write(&mut self, write: impl FnOnce(&mut Files) -> Result<(), String>) {
        let result = self.files.as_mut().map_or(Ok(()), write);
        if let (Err(failure), None) = (result, &self.failure) {
            self.failure = Some(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use stile_wire::VmState;

    use super::*;
    use crate::config::Arch;

    #[test]
    fn a_full_disk_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", dir.path().join("a.console.log")).unwrap();
        let mut logs = Logs::create(dir.path(), ["a"].into_iter(), "").unwrap();
        assert_eq!((logs.take_news(), logs.failure()), (None, None));
        logs.console(0, b"hello");
        logs.console(0, b"hello");
        assert!(logs.take_news().is_some_and(|news| news.contains("a.console.log is incomplete")));
        assert_eq!(logs.take_news(), None);
        assert!(logs.failure().is_some());
    }

    #[test]
    fn each_console_has_a_file_and_events_are_lines() {
        let dir = tempfile::tempdir().unwrap();
        let mut logs = Logs::create(dir.path(), ["a", "b"].into_iter(), "emulator -x").unwrap();
        logs.console(1, b"hello");
        logs.console(7, b"nobody");
        logs.stile(b"up\n");
        logs.event("", &Event::Vm { vm: 0, state: VmState::PoweredOff }, &Exits::new(Arch::Aarch64));
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("b.console.log"), "hello");
        assert_eq!(read("a.console.log"), "");
        assert_eq!(read("stile.log"), "up\n");
        assert_eq!(read("emulator.log"), "emulator -x\n");
        let line: serde_json::Value = serde_json::from_str(&read("events.jsonl")).unwrap();
        assert_eq!(line["event"]["Vm"]["state"], "PoweredOff");
    }
}
