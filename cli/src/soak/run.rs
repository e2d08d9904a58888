//! Runs one round as a separate `stile run`, as a user would start it.

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::plan::{NEIGHBOUR, Round, SOAK};
use super::verdict::{self, Consoles, Outcome};
use crate::child::end_with_parent;
use crate::config::Arch;
use crate::programs::Programs;

/// Seconds after which a round has failed, and operations for which there is one more. The slowest machines make some thousand operations a
/// second, and fewer on a busy host. A round that makes no progress ends earlier, after [`STALL`].
const PATIENCE: u64 = 3600;
const SLOWEST: u64 = 250;
/// Maximum time without a progress report; a round reports 100 times.
const STALL: Duration = Duration::from_secs(900);
/// Interval at which the consoles are polled.
const POLL: Duration = Duration::from_millis(200);

/// Runs a round in a directory, which keeps its output. Calls `tell` periodically with the number of operations so far. Returns `None` if
/// `stop` was set meanwhile.
///
/// # Errors
/// The round can't be started, or its files can't be written.
pub fn run(round: &Round, programs: &Programs, dir: &Path, bound: u64, stop: &AtomicBool, tell: impl Fn(u64)) -> Result<Option<Outcome>> {
    // An earlier run of this round would be taken for this one.
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("emptying {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let path = dir.join("machine.toml");
    fs::write(&path, round.config(programs)?).with_context(|| format!("writing {}", path.display()))?;
    let logs = dir.join("log");
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.arg("run").arg(&path).arg("--exits").arg("--log").arg(&logs);
    command.args(["--timeout", &(PATIENCE + round.operations / SLOWEST).to_string()]);
    if round.arch == Arch::Aarch64 && round.is_timed() {
        command.arg("--icount");
    }
    let create = |name: &str| File::create(dir.join(name)).with_context(|| format!("making {name} in {}", dir.display()));
    let mut child = end_with_parent(&mut command, Signal::TERM)
        .stdin(Stdio::null())
        .stdout(create("output.txt")?)
        .stderr(create("errors.txt")?)
        .spawn()
        .context("starting the round")?;
    let mut consoles = Consoles::default();
    // The logs, as they have each console's lines whole.
    let mut tails = [SOAK, NEIGHBOUR].map(|name| (name, Tail::new(logs.join(format!("{name}.console.log")))));
    let mut told = false;
    let (mut operations, mut progress, mut stalled) = (0, Instant::now(), false);
    let status = loop {
        let status = child.try_wait().context("waiting for the round")?;
        for (name, tail) in &mut tails {
            tail.lines(|line| consoles.line(name, line));
        }
        if let Some(status) = status {
            break status;
        }
        tell(consoles.operations);
        if consoles.operations != operations {
            (operations, progress) = (consoles.operations, Instant::now());
        }
        stalled |= progress.elapsed() > STALL;
        if !told && (consoles.status.is_some() || stalled || stop.load(Ordering::Relaxed)) {
            end(&child);
            told = true;
        }
        std::thread::sleep(POLL);
    };
    if stop.load(Ordering::Relaxed) && consoles.status.is_none() {
        return Ok(None);
    }
    let events = fs::read_to_string(logs.join("events.jsonl")).unwrap_or_default();
    let mut outcome = verdict::judge(round, status.code(), &consoles, &events, bound);
    if stalled {
        outcome.problems.push(format!("{SOAK} made no operations for {} s", STALL.as_secs()));
    }
    Ok(Some(outcome))
}

/// A file that grows.
struct Tail {
    path: PathBuf,
    file: Option<BufReader<File>>,
    /// Bytes read that do not form a complete line yet.
    rest: Vec<u8>,
}

impl Tail {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None, rest: Vec::new() }
    }

    /// Takes the whole lines that are new.
    fn lines(&mut self, mut take: impl FnMut(&str)) {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok().map(BufReader::new);
        }
        // A failed read is tried again; at the end the verdict misses its lines.
        let read = self.file.as_mut().map(|file| file.read_to_end(&mut self.rest));
        if let Some(Ok(1..)) = read
            && let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n')
        {
            let lines: Vec<u8> = self.rest.drain(..=end).collect();
            String::from_utf8_lossy(&lines).lines().for_each(|line| take(line.trim()));
        }
    }
}

fn end(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::INT);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_tail_gives_whole_lines_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail::new(path.clone());
        let mut lines = Vec::new();
        tail.lines(|line| lines.push(line.to_owned()));
        let mut file = File::create(&path).unwrap();
        for part in ["one\r\nEX", "IT: STATUS=0\n", "rest"] {
            file.write_all(part.as_bytes()).unwrap();
            tail.lines(|line| lines.push(line.to_owned()));
        }
        assert_eq!(lines, ["one", "EXIT: STATUS=0"]);
    }
}
