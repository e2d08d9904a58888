//! A scenario: a `stile run`, and its expected outcome.

use std::io::{BufReader, Read, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::client::MACHINE;
use super::disk::Contents;
use super::disturbed::Disturbed;
use super::figure::Figure;
use super::longest_exit;
use super::operator::{Operator, Step};
use super::output::Output;
use super::screen;
use super::slowdown::{Clock, longest, stretched};
use super::stall::may_be_a_stall;
use stile::child::end_with_parent;
use stile::config::Arch;
use stile::programs::PASSED;
use stile::{exit, out};

/// The last line of the ledger when nothing was missed.
pub const NO_DIFFERENCE: &str = "difference 0";

/// Default time-out of a scenario in seconds. The longest takes 60 on an idle machine, and 200 beside four other emulators on two CPUs.
pub const TIMEOUT: u32 = 600;

/// Factor of the time-out of a second attempt.
const PATIENT: u32 = 4;

/// The emulator's log of exceptions, in the scenario's own directory.
const EXCEPTIONS: &str = "exceptions.log";

/// Additional time before the emulator starts, as the run may have to fetch a kernel or to build the hypervisor. Also the time that a run
/// has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(300);

/// The longest time that a run has on a busy machine, unless its own time-out is longer: continuous integration ends after 90 minutes.
const MOST_TIME: Duration = Duration::from_secs(45 * 60);

/// A scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name, with slashes.
    pub name: String,
    /// The arguments of `stile run`.
    pub arguments: Vec<String>,
    /// The text of the machine's configuration, if it is described by a file.
    pub config: Option<String>,
    /// A disk for the machine: `{disk}` in an argument or in the configuration is its file.
    pub disk: Option<Contents>,
    /// Text to type, and the text on standard output to wait for before.
    pub input: Option<(&'static str, &'static str)>,
    /// Files that the operator has: names and contents. `{dir}` in an argument is their folder.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// An operator's steps during the run, in this order.
    pub steps: Vec<Step>,
    /// The machine has a screen, which must show these lines when standard output has this.
    pub screen: Option<(&'static str, &'static [&'static str])>,
    /// Time-out in seconds of [`Clock`], which slows down on a busy machine. If the run is expected to time out, also its `--timeout`.
    pub timeout: u32,
    /// The expected result.
    pub expect: Expect,
}

/// The expected result of a run.
#[derive(Debug, Clone)]
pub struct Expect {
    /// The exit status.
    pub status: u8,
    /// Texts that standard output must have in it, in this order.
    pub output: Vec<String>,
    /// Texts that standard output must have in it, anywhere among those of `output`: from VMs that run concurrently.
    pub concurrent: Vec<&'static str>,
    /// Texts that standard error must have in it, in any order; one that is here twice must be there twice.
    pub notes: Vec<String>,
    /// Texts that standard output must not have in it.
    pub absent: Vec<&'static str>,
    /// Texts that standard error must not have in it.
    pub absent_notes: Vec<&'static str>,
    /// Rows of the account whose names begin so, each of which must be there, and the most microseconds that one of their exits may take.
    /// For runs with `--icount`, where a microsecond is 1000 instructions.
    pub longest: Vec<(&'static str, f64)>,
    /// Rows of the account: the name, the required count, and the maximum average microseconds of its exits, as for
    /// [`Expect::longest`].
    pub rows: Vec<(&'static str, RangeInclusive<u64>, f64)>,
    /// The account's number of exits must equal that of the exceptions to EL2 in the emulator's log.
    pub counted_by_emulator: bool,
    /// No exit takes longer than [`longest_exit::BOUND`]: on one CPU of such an architecture, on Arm with `--icount`.
    pub bounded_exits: Option<Arch>,
    /// Other VMs' PCI functions interrupt this VM within their limit.
    pub disturbed: Option<Disturbed>,
    /// A number on standard output that is shown, and its maximum.
    pub figure: Option<Figure>,
    /// Send this to the run when standard output has everything of [`Expect::output`] in it, standard error [`Expect::signal_note`], and all
    /// steps were taken.
    pub signal: Option<Signal>,
    /// Text that standard error must contain before the signal is sent.
    pub signal_note: &'static str,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            status: exit::OK,
            output: Vec::new(),
            concurrent: Vec::new(),
            notes: Vec::new(),
            absent: Vec::new(),
            absent_notes: Vec::new(),
            longest: Vec::new(),
            rows: Vec::new(),
            counted_by_emulator: false,
            bounded_exits: None,
            disturbed: None,
            figure: None,
            signal: None,
            signal_note: "",
        }
    }
}

impl Scenario {
    /// A scenario with one VM, described by arguments that are separated by spaces.
    pub fn new(name: impl Into<String>, arguments: &str) -> Self {
        // Notes may name any row of the account, however small.
        let argument = |word: &str| if word == "--exits" { "--exits=all".to_owned() } else { word.to_owned() };
        Self {
            name: name.into(),
            arguments: arguments.split_whitespace().map(argument).collect(),
            config: None,
            disk: None,
            input: None,
            files: Vec::new(),
            steps: Vec::new(),
            screen: None,
            timeout: TIMEOUT,
            expect: Expect::default(),
        }
    }

    /// With one more argument and its value.
    pub fn with(mut self, argument: &str, value: impl Into<String>) -> Self {
        self.arguments.extend([argument.to_owned(), value.into()]);
        self
    }

    /// With one more argument.
    pub fn flag(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Architecture of the machine.
    pub fn arch(&self) -> Arch {
        let flag = self.arguments.iter().any(|argument| argument == Arch::X86_64.name());
        let key = self.config.as_ref().is_some_and(|config| config.contains("arch = \"x86_64\""));
        if flag || key { Arch::X86_64 } else { Arch::Aarch64 }
    }

    /// Runs it; the error is a report for people. A run that times out as expected, but on a busy machine before the guest has said what it
    /// should, is repeated with [`PATIENT`] times as long.
    pub fn run(&self) -> Result<(), String> {
        match self.attempt() {
            Err(report) if self.expect.status == exit::TIMEOUT && !report.contains("exit status") && may_be_a_stall(&report) => {
                out::note(format_args!("{}: the time-out came too soon; once more, with {PATIENT} times as long", self.name));
                Self { timeout: PATIENT * self.timeout, ..self.clone() }.attempt()
            }
            done => done,
        }
    }

    fn attempt(&self) -> Result<(), String> {
        let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
        let mut child = self.start(dir.path())?;
        let output = collect(child.stdout.take());
        let notes = collect(child.stderr.take());
        let mut keyboard = child.stdin.take();
        let mut input = self.input;
        let (mut out, mut err) = (Output::default(), Vec::new());
        let (start, mut clock) = (Instant::now(), Clock::start());
        let limit = self.limit() + GRACE;
        let mut has_timed_out = false;
        let mut signal = self.expect.signal;
        let mut operator = Operator::new(&self.steps);
        let mut is_given_up = false;
        let (mut screen, mut screen_problem) = (self.screen, None);
        loop {
            drain(&notes, &mut err);
            match output.recv_timeout(Duration::from_millis(100)) {
                Ok(bytes) => {
                    out.push(&bytes);
                    output.try_iter().for_each(|bytes| out.push(&bytes));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if let Some((_, lines)) = screen.filter(|(text, _)| out.text().contains(text)) {
                screen = None;
                screen_problem = screen::check(dir.path(), lines).err();
            }
            if let (Some((prompt, text)), Some(keyboard)) = (input, &mut keyboard)
                && out.text().contains(prompt)
            {
                let _ = keyboard.write_all(text.as_bytes());
                input = None;
            }
            operator.poll(out.text(), dir.path());
            if !operator.problems.is_empty() && !is_given_up {
                // The next steps may wait for output of a VM that a failed step should have started.
                is_given_up = true;
                send(&child, Some(Signal::TERM));
            }
            let is_noted = || String::from_utf8_lossy(&err).contains(self.expect.signal_note);
            if signal.is_some() && operator.is_done() && missing(out.text(), &self.expect.output).is_none() && is_noted() {
                send(&child, signal.take());
            }
            let (elapsed, real) = (clock.elapsed(), start.elapsed().saturating_sub(limit.max(MOST_TIME)));
            if (elapsed > limit || !real.is_zero()) && !has_timed_out {
                has_timed_out = true;
                send(&child, Some(Signal::TERM));
            }
            if elapsed > limit + GRACE || real > GRACE {
                let _ = child.kill();
            }
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        err.extend(notes.iter().flatten());
        let (out, err) = (out.text(), plain(&err));
        let mut problems = operator.conclude(&err);
        if has_timed_out {
            problems.push(format!("time-out after {} s", start.elapsed().as_secs()));
        }
        problems.extend(screen_problem);
        problems.extend(screen.map(|(text, _)| format!("the screen was never looked at: standard output has no {text:?}")));
        problems.extend(self.expect.problems(status.code(), out, &err));
        if let Some(arch) = self.expect.bounded_exits {
            problems.extend(longest_exit::problem(arch, &err));
        }
        if self.expect.counted_by_emulator {
            problems.extend(disagreement(&dir.path().join(EXCEPTIONS), &err));
        }
        if let Some(disk) = self.disk {
            problems.extend(disk.problem(&dir.path().join("disk.img")));
        }
        problems.extend(self.expect.figure.and_then(|figure| figure.problem(&self.name, out)));
        if problems.is_empty() {
            return Ok(());
        }
        Err(format!("{}\n--- standard output, its end:\n{}\n--- standard error, its end:\n{}", problems.join("\n"), end(out), end(&err)))
    }

    /// Returns the time-out.
    fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    /// Returns the run's `--timeout`, which begins with the emulator. The suite's time-out precedes it, unless the run is expected to time
    /// out.
    fn run_timeout(&self) -> Duration {
        if self.expect.status == exit::TIMEOUT { stretched(self.limit()).min(MOST_TIME) } else { longest(self.limit()) }
    }

    fn start(&self, dir: &Path) -> Result<Child, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("run");
        let disk = dir.join("disk.img").display().to_string();
        if let Some(disk_of) = self.disk {
            disk_of.write(Path::new(&disk)).map_err(|error| format!("{disk}: {error}"))?;
        }
        if let Some(config) = &self.config {
            let path = dir.join("machine.toml");
            std::fs::write(&path, config.replace("{disk}", &disk)).map_err(|error| error.to_string())?;
            command.arg(path);
        }
        for (name, contents) in &self.files {
            std::fs::write(dir.join(name), contents).map_err(|error| error.to_string())?;
        }
        if self.expect.counted_by_emulator {
            let log = dir.join(EXCEPTIONS).display().to_string();
            command.args(["--qemu-arg=-d", "--qemu-arg=int", "--qemu-arg=-D"]).arg(format!("--qemu-arg={log}"));
        }
        if self.screen.is_some() {
            screen::add(&mut command, dir);
        }
        if !self.steps.is_empty() {
            command.args(["--name", MACHINE]).env("XDG_RUNTIME_DIR", dir);
        }
        end_with_parent(&mut command, Signal::TERM)
            .args(self.arguments.iter().map(|argument| argument.replace("{disk}", &disk).replace("{dir}", &dir.display().to_string())))
            .args(["--timeout", &self.run_timeout().as_secs().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())
    }
}

impl Expect {
    fn problems(&self, status: Option<i32>, out: &str, err: &str) -> Vec<String> {
        let mut problems = Vec::new();
        if status != Some(self.status.into()) {
            let status = status.map_or("a signal".to_owned(), |status| status.to_string());
            problems.push(format!("exit status {status}, expected {}", self.status));
        }
        if let Some(text) = missing(out, &self.output) {
            problems.push(format!("standard output has no {text:?} where it should be"));
        }
        let absent = self.concurrent.iter().filter(|text| !out.contains(**text));
        problems.extend(absent.map(|text| format!("standard output has no {text:?} in it")));
        for text in &self.notes {
            let times = self.notes.iter().filter(|other| *other == text).count();
            if err.matches(text.as_str()).count() < times {
                problems.push(format!("standard error has no {text:?} in it"));
            }
        }
        if self.notes.iter().any(|note| note == NO_DIFFERENCE) {
            let differs = |line: &&str| line.contains("exits counted ") && !line.ends_with(NO_DIFFERENCE);
            problems.extend(err.lines().find(differs).map(|line| format!("standard error has another difference in it: {line}")));
        }
        for (stream, shown, absent) in [("output", out, &self.absent), ("error", err, &self.absent_notes)] {
            for text in absent {
                if let Some(line) = shown.lines().find(|line| line.contains(text)) {
                    problems.push(format!("standard {stream} has {text:?} in it: {line}"));
                }
            }
        }
        problems.extend(self.rows.iter().filter_map(|(name, count, most)| out_of_budget(err, name, count, *most)));
        problems.extend(self.disturbed.and_then(|disturbed| disturbed.problem(err)));
        problems.extend(self.longest.iter().filter_map(|&(name, most)| too_long(err, name, most)));
        problems
    }
}

/// Reports a problem if row `name` of the accounts has another number of exits, 0 if it is not there, or takes more microseconds on average.
fn out_of_budget(err: &str, name: &str, count: &RangeInclusive<u64>, most: f64) -> Option<String> {
    let row = |line: &str| {
        let mut columns = line.trim_start().strip_prefix(name)?.split_whitespace();
        let samples: u64 = columns.next()?.parse().ok()?;
        Some((samples, columns.last()?.strip_suffix("us")?.parse::<f64>().ok()?))
    };
    match err.lines().find_map(row) {
        None => (!count.contains(&0)).then(|| format!("the account has no row {name:?}")),
        Some((samples, average)) if !count.contains(&samples) || average > most => {
            Some(format!("{samples} exits of {name:?} took {average}us on average, expected {count:?}, and {most}us at most"))
        }
        Some(_) => None,
    }
}

/// Reports a problem if no row of the accounts begins with `name`, or if the longest exit of one took more than `most` microseconds.
fn too_long(err: &str, name: &str, most: f64) -> Option<String> {
    // The last columns are the minimum, the maximum and the average.
    let maximum = |line: &str| line.split_whitespace().rev().nth(1)?.strip_suffix("us")?.parse::<f64>().ok();
    let rows = err.lines().filter(|line| line.trim_start().starts_with(name)).filter_map(maximum);
    match rows.max_by(f64::total_cmp) {
        None => Some(format!("the account has no row {name:?}")),
        Some(longest) => (longest > most).then(|| format!("an exit of {name:?} took {longest}us, expected {most}us at most")),
    }
}

/// Faults: the emulator's log and the accounts on standard error must name the same number of exits.
fn disagreement(log: &Path, err: &str) -> Option<String> {
    let taken = |line: &str| line.strip_prefix("exits counted ")?.split([' ', ',']).next()?.parse::<u64>().ok();
    let counted: u64 = err.lines().filter_map(taken).sum();
    let log = match std::fs::read_to_string(log) {
        Ok(log) => log,
        Err(error) => return Some(format!("the emulator's log can't be read: {error}")),
    };
    let exits = log.lines().filter(|line| line.starts_with("...from EL0 to EL2") || line.starts_with("...from EL1 to EL2")).count() as u64;
    (counted == 0 || counted != exits).then(|| format!("the account has {counted} exits, and the emulator counted {exits}"))
}

/// The first of `texts` that isn't in `output` after those before it.
fn missing<'a>(output: &str, texts: &'a [String]) -> Option<&'a str> {
    let mut rest = output;
    texts.iter().map(String::as_str).find(|text| match rest.find(text) {
        Some(at) => {
            rest = &rest[at + text.len()..];
            false
        }
        None => true,
    })
}

/// Reads a stream in a separate thread.
fn collect(stream: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, bytes) = channel();
    thread::spawn(move || {
        let Some(stream) = stream else { return };
        let mut stream = BufReader::new(stream);
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if send.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    bytes
}

fn drain(from: &Receiver<Vec<u8>>, to: &mut Vec<u8>) {
    while let Ok(bytes) = from.try_recv() {
        to.extend(bytes);
    }
}

fn send(child: &Child, signal: Option<Signal>) {
    if let Some((signal, pid)) = signal.zip(i32::try_from(child.id()).ok().and_then(Pid::from_raw)) {
        let _ = kill_process(pid, signal);
    }
}

/// Text without terminal control sequences: dialogs are full of them.
fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.split('\n').map(stile::session::plain).collect::<Vec<_>>().join("\n")
}

fn end(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// All tests passed, and exits counted are exits taken.
pub(super) fn passed() -> Expect {
    Expect { output: vec![PASSED.into()], notes: vec![NO_DIFFERENCE.into()], absent: vec!["FAIL "], ..Expect::default() }
}

/// The VMs `one` and `two`, which print turns without end, make progress concurrently.
pub(super) fn by_turns() -> Expect {
    let output = ["one | turn", "two | turn"].repeat(3).into_iter().map(String::from).collect();
    let notes = vec![NO_DIFFERENCE.into(); 2];
    Expect { status: exit::LEFT, output, notes, signal: Some(Signal::INT), ..Expect::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_must_come_in_order() {
        let expect = Expect { output: vec!["one".into(), "two".into()], ..Expect::default() };
        assert!(expect.problems(Some(0), "one two", "").is_empty());
        assert_eq!(expect.problems(Some(0), "two one", "").len(), 1);
        assert_eq!(expect.problems(Some(1), "", "").len(), 2);
        assert_eq!(expect.problems(None, "one two", "").len(), 1);
        let expect = Expect { concurrent: vec!["three"], ..expect };
        for output in ["three one two", "one three two", "one two three"] {
            assert!(expect.problems(Some(0), output, "").is_empty(), "{output}");
        }
        assert_eq!(expect.problems(Some(0), "one two", "").len(), 1);
    }

    #[test]
    fn an_exit_that_takes_too_long_is_found() {
        let account = "NESTED   3  50.00%  1.00us  250.50us  80.00us\n  TLBI ALLE1 write   1  3.00%  2.10%  200.10us  200.10us  200.10us\n";
        let problems = |name, most| Expect { longest: vec![(name, most)], ..Expect::default() }.problems(Some(0), "", account).len();
        assert_eq!(
            [problems("TLBI ALLE1", 200.1), problems("TLBI ALLE1", 200.0), problems("NESTED", 251.0), problems("ERET", 1e9)],
            [0, 1, 0, 1]
        );
    }

    #[test]
    fn rows_beyond_their_budget_are_found() {
        let account = "IRQ    5  1.0%  1.0%  0.05us  0.75us  0.18us\n  device   4001  67.74%  70.02%  0.20us  0.75us  0.20us\n";
        let problems =
            |name, count, most| Expect { rows: vec![(name, count, most)], ..Expect::default() }.problems(Some(0), "", account).len();
        assert_eq!(
            [problems("device", 4000..=4010, 0.2), problems("device", 0..=4000, 0.2), problems("device", 0..=5000, 0.19)],
            [0, 1, 1]
        );
        // A row that is not there has a count of 0.
        assert_eq!([problems("kick", 1..=9, 1.0), problems("kick", 0..=9, 1.0)], [1, 0]);
    }

    #[test]
    fn what_must_be_absent_is_reported_with_its_line() {
        let expect = Expect { absent: vec!["FAIL"], notes: vec!["difference 0".into()], ..Expect::default() };
        assert!(expect.problems(Some(0), "PASS a", "difference 0").is_empty());
        assert_eq!(expect.problems(Some(0), "PASS a\nFAIL b\n", "difference 1").len(), 2);
        let expect = Expect { absent_notes: vec!["FAIL"], ..Expect::default() };
        assert!(expect.problems(Some(0), "FAIL", "").is_empty());
        assert_eq!(expect.problems(Some(0), "", "FAIL").len(), 1);
        let expect = Expect { notes: vec!["difference 0".into(); 2], ..Expect::default() };
        assert!(expect.problems(Some(0), "", "difference 0\ndifference 0").is_empty());
        assert!(!expect.problems(Some(0), "", "difference 0").is_empty());
    }
}
