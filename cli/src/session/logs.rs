//! The files of `--log DIR`.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use stile_wire::Event;

/// What a run writes down, unfiltered: nothing at all without a directory. A file that can't be written to any more doesn't end the run.
#[derive(Debug, Default)]
pub struct Logs {
    files: Option<Files>,
}

#[derive(Debug)]
struct Files {
    start: Instant,
    consoles: Vec<File>,
    stile: File,
    emulator: File,
    events: File,
}

/// A line of `events.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since the emulator was started.
    seconds: f64,
    /// The VM whose Stile says it; nothing if it is the machine's own.
    #[serde(skip_serializing_if = "str::is_empty")]
    stile: &'a str,
    event: &'a Event,
}

impl Logs {
    /// Makes the files in `dir`: `NAME.console.log` for each VM, `stile.log`, `emulator.log` (which starts with `command`, the emulator's
    /// command line) and `events.jsonl`.
    ///
    /// # Errors
    /// The directory or a file can't be made.
    pub fn create<'a>(dir: &Path, names: impl Iterator<Item = &'a str>, command: &str) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let create = |name: &str| {
            let path = dir.join(name);
            File::create(&path).with_context(|| format!("making {}", path.display()))
        };
        let mut emulator = create("emulator.log")?;
        writeln!(emulator, "{command}")?;
        let consoles = names.map(|name| create(&format!("{name}.console.log"))).collect::<Result<_>>()?;
        let (stile, events) = (create("stile.log")?, create("events.jsonl")?);
        Ok(Self { files: Some(Files { start: Instant::now(), consoles, stile, emulator, events }) })
    }

    /// Output of the console with index `vm`.
    pub fn console(&mut self, vm: usize, bytes: &[u8]) {
        if let Some(file) = self.files.as_mut().and_then(|files| files.consoles.get_mut(vm)) {
            let _ = file.write_all(bytes);
        }
    }

    /// Stile's own log.
    pub fn stile(&mut self, bytes: &[u8]) {
        if let Some(files) = &mut self.files {
            let _ = files.stile.write_all(bytes);
        }
    }

    /// What the emulator says on its standard error.
    pub fn emulator(&mut self, bytes: &[u8]) {
        if let Some(files) = &mut self.files {
            let _ = files.emulator.write_all(bytes);
        }
    }

    /// A message of the Stile in a VM, or, if that has no name, of the machine's own.
    pub fn event(&mut self, stile: &str, event: &Event) {
        if let Some(files) = &mut self.files {
            let line = Line { seconds: files.start.elapsed().as_secs_f64(), stile, event };
            if let Ok(line) = serde_json::to_string(&line) {
                let _ = writeln!(files.events, "{line}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stile_wire::VmState;

    use super::*;

    #[test]
    fn each_console_has_a_file_and_events_are_lines() {
        let dir = tempfile::tempdir().unwrap();
        let mut logs = Logs::create(dir.path(), ["a", "b"].into_iter(), "emulator -x").unwrap();
        logs.console(1, b"hello");
        logs.console(7, b"nobody");
        logs.stile(b"up\n");
        logs.event("", &Event::Vm { vm: 0, state: VmState::PoweredOff });
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("b.console.log"), "hello");
        assert_eq!(read("a.console.log"), "");
        assert_eq!(read("stile.log"), "up\n");
        assert_eq!(read("emulator.log"), "emulator -x\n");
        let line: serde_json::Value = serde_json::from_str(&read("events.jsonl")).unwrap();
        assert_eq!(line["event"]["Vm"]["state"], "PoweredOff");
    }
}
