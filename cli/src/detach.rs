//! `stile run --detach`: runs the machine in a separate process without a terminal.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::control::client::Connection;
use crate::control::directory::Directory;
use crate::{cleanup, exit, out};

/// Set in the environment of the new process: the machine's name.
const DETACHED: &str = "STILE_DETACHED";

/// Interval at which the new process is polled while it starts.
const INTERVAL: Duration = Duration::from_millis(50);

/// In the process that [`detach`] starts: leaves the caller's session, so that its end does not end the machine.
/// Returns the machine's name.
pub fn detached() -> Option<String> {
    let name = std::env::var(DETACHED).ok()?;
    // It fails for the leader of a process group, which a process that was started by another one is not.
    let _ = rustix::process::setsid();
    Some(name)
}

/// Re-executes this command in a new session, and waits until the machine can be reached. Shows its messages meanwhile: a build may take
/// minutes. Prints the machine's name, or with `json` an object.
///
/// # Errors
/// A machine of this name runs; the process can't be started. If it ends before it can be reached, its status is the result.
pub fn detach(name: Option<&str>, json: bool) -> Result<u8> {
    let directory = Directory::open()?;
    // Released at once: the new process claims the name itself. It fails there if another one was faster.
    let name = directory.claim(name)?.name.clone();
    // Until then the log with the machine's name may be another one's.
    let (log, _cleanup) = cleanup::removing(|| directory.new_log(&name))?;
    let messages = log.as_file().try_clone().context("sharing the machine's log")?;
    let own = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(own);
    command.args(std::env::args_os().skip(1)).env(DETACHED, &name);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
    // A signal before the machine can be reached ends the start.
    let (mut child, _end) = cleanup::ending(|| command.spawn()).context("starting the machine's process")?;
    let mut shown = Follower::new(log.reopen().context("reading the machine's log")?);
    loop {
        let ended = child.try_wait().context("waiting for the machine's process")?;
        shown.lines(ended.is_some()).iter().for_each(out::note);
        if let Some(status) = ended {
            return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILURE));
        }
        if directory.machines()?.contains(&name)
            && Connection::open(&directory, &name).and_then(|mut machine| machine.status()).is_ok_and(|status| status.pid == child.id())
        {
            let place = directory.log(&name);
            log.persist(&place).map_err(|error| error.error).with_context(|| format!("making {}", place.display()))?;
            if json {
                out::json(&json!({"machine": name, "pid": child.id(), "log": place}))?;
            } else {
                out::line(&name)?;
            }
            return Ok(exit::OK);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Reads a file that grows.
struct Follower {
    file: File,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Follower {
    const fn new(file: File) -> Self {
        Self { file, rest: Vec::new() }
    }

    /// Returns the lines that are new: complete ones, or with `all` also the rest. A file that can't be read has no more.
    fn lines(&mut self, all: bool) -> Vec<String> {
        let _ = self.file.read_to_end(&mut self.rest);
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let lines: Vec<u8> = self.rest.drain(..if all { self.rest.len() } else { end }).collect();
        String::from_utf8_lossy(&lines).lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_read_once_when_they_are_complete() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        let mut follower = Follower::new(log.reopen().unwrap());
        assert!(follower.lines(false).is_empty());
        log.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(follower.lines(false), ["one", "two"]);
        log.write_all(b"ee\nfour").unwrap();
        assert_eq!(follower.lines(false), ["three"]);
        assert_eq!(follower.lines(true), ["four"]);
        assert!(follower.lines(true).is_empty());
    }
}
