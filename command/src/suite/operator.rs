//! An operator's steps from another terminal while a scenario's machine runs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use stile::metrics::parse::parse;

use super::client::Broken;
use super::slowdown::stretched;

/// Time-out of a command.
const LIMIT: Duration = Duration::from_secs(900);

/// Time for which a command is repeated ([`Step::patient`]), and the pause before each repetition.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(200);

/// A command and its expected outcome.
#[derive(Debug, Clone)]
pub struct Step {
    /// Text of standard output, since the previous step, that triggers the command.
    pub trigger: &'static str,
    /// The words after `stile`.
    pub words: Vec<&'static str>,
    /// The exit status.
    pub status: u8,
    /// Texts expected in its output or messages.
    pub expected: Vec<&'static str>,
    /// The command's JSON or metrics contain as many exits as one of the accounts at the end.
    pub agrees: bool,
    /// A file that it writes, and a check of its contents: the error is a sentence.
    pub writes: Option<(&'static str, Check)>,
    /// The words to try instead if the expectations are not met, as on a machine that was slow.
    pub otherwise: Vec<&'static str>,
    /// The command is repeated until the expectations are met, for at most [`PATIENCE`].
    pub patient: bool,
    /// A request of a client that disconnects, instead of the command.
    pub broken: Option<Broken>,
    /// Output from before the end of the previous command does not count.
    pub fresh: bool,
    /// Members of its JSON, and their largest values.
    pub at_most: Vec<(&'static str, u64)>,
}

/// Checks the contents of a file.
pub type Check = fn(&[u8]) -> Result<(), String>;

impl Step {
    /// A command that succeeds; its words are separated by spaces.
    pub fn new(trigger: &'static str, words: &'static str, expected: &[&'static str]) -> Self {
        Self {
            trigger,
            words: words.split_whitespace().collect(),
            status: 0,
            expected: expected.to_vec(),
            agrees: false,
            writes: None,
            otherwise: Vec::new(),
            patient: false,
            broken: None,
            fresh: false,
            at_most: Vec::new(),
        }
    }

    /// Expects a number of at most this value as a member of its JSON.
    pub fn at_most(mut self, member: &'static str, value: u64) -> Self {
        self.at_most.push((member, value));
        self
    }

    /// Waits for output that comes after the end of the previous command, for a trigger that also comes before.
    pub fn fresh(self) -> Self {
        Self { fresh: true, ..self }
    }

    /// A client that disconnects in the middle of its request.
    pub fn broken(trigger: &'static str, request: Broken) -> Self {
        Self { broken: Some(request), ..Self::new(trigger, "", &[]) }
    }

    /// Expects another status.
    pub fn fails(self, status: u8) -> Self {
        Self { status, ..self }
    }

    /// Expects the exits of an account at the end.
    pub fn agrees(self) -> Self {
        Self { agrees: true, ..self }
    }

    /// Expects a file.
    pub fn writes(self, file: &'static str, check: Check) -> Self {
        Self { writes: Some((file, check)), ..self }
    }

    /// Tries other words if the expectations are not met: the same command with more time.
    pub fn otherwise(self, words: &'static str) -> Self {
        Self { otherwise: words.split_whitespace().collect(), ..self }
    }

    /// Repeats the command until the expectations are met: a slow machine may meet them later.
    pub fn patient(self) -> Self {
        Self { patient: true, ..self }
    }

    /// Runs the command, and the other one if the expectations are not met, in the directory `runtime`. Returns and fails as [`Step::give`].
    fn take(&self, runtime: &Path) -> Result<String, String> {
        if let Some(request) = self.broken {
            return request.run(runtime);
        }
        self.insist(stretched(PATIENCE), |words| self.give(words, runtime))
    }

    /// Runs the command by `give`. If it fails, runs the alternative if there is one; else, if the step is patient, repeats the command for at
    /// most `limit`.
    fn insist(&self, limit: Duration, mut give: impl FnMut(&[&str]) -> Result<String, String>) -> Result<String, String> {
        let end = Instant::now() + limit;
        loop {
            match give(&self.words) {
                Err(_) if !self.otherwise.is_empty() => return give(&self.otherwise),
                Err(_) if self.patient && Instant::now() < end => thread::sleep(PAUSE),
                done => return done,
            }
        }
    }

    /// Runs the command with these words in the directory `runtime`, with the control sockets. Returns the output; the error is a report for people.
    fn give(&self, words: &[&str], runtime: &Path) -> Result<String, String> {
        let what = words.join(" ");
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("timeout");
        command.arg(stretched(LIMIT).as_secs().to_string()).arg(program).args(words).env("XDG_RUNTIME_DIR", runtime).current_dir(runtime);
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{what}: {error}"))?;
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        if output.status.code() != Some(self.status.into()) {
            return Err(format!("`stile {what}` ended with {}, expected {}: {said}", output.status, self.status));
        }
        if let Some(text) = self.expected.iter().find(|text| !said.contains(**text)) {
            return Err(format!("`stile {what}` did not say {text:?}: {said}"));
        }
        for (member, most) in &self.at_most {
            let value = said.split_once(&format!("\"{member}\":")).and_then(|(_, after)| number_at(after));
            if value.is_none_or(|value| value > *most) {
                return Err(format!("`stile {what}` said {value:?} for {member}, expected {most} at most: {said}"));
            }
        }
        if let Some((file, check)) = self.writes {
            let bytes = std::fs::read(runtime.join(file)).map_err(|error| format!("{file}: {error}"))?;
            check(&bytes).map_err(|why| format!("{file} of `stile {what}`: {why}"))?;
        }
        Ok(said)
    }
}

/// The number at the beginning of a text.
fn number_at(text: &str) -> Option<u64> {
    text.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()
}

/// The first number of exits in the JSON of `stile top`, or the sum in `stile metrics`.
fn exits_taken(said: &str) -> Option<String> {
    if let Some((_, after)) = said.split_once(r#""exits_taken":"#) {
        return after.split(|char: char| !char.is_ascii_digit()).next().map(str::to_owned);
    }
    let series = parse(said).ok()?;
    let exits = series.iter().filter(|series| series.name == "stile_vcpu_exits_total");
    Some(exits.map(|series| series.value).sum::<f64>().to_string())
}

/// The remaining steps, and the problems found.
#[derive(Debug)]
pub struct Operator<'s> {
    rest: std::slice::Iter<'s, Step>,
    /// Start of the output that the next step examines.
    from: usize,
    /// A command has ended since the output was examined.
    has_ended: bool,
    /// Lines that the accounts at the end must have.
    accounts: Vec<String>,
    /// The first fault.
    pub problems: Vec<String>,
}

impl<'s> Operator<'s> {
    /// Before the first step.
    pub fn new(steps: &'s [Step]) -> Self {
        Self { rest: steps.iter(), from: 0, has_ended: false, accounts: Vec::new(), problems: Vec::new() }
    }

    /// Whether all steps were taken.
    pub fn is_done(&self) -> bool {
        self.rest.as_slice().is_empty()
    }

    /// Takes the next step if its trigger is in the output. `output` only grows; `runtime` has the control sockets.
    pub fn poll(&mut self, output: &str, runtime: &Path) {
        self.poll_with(output, |step| step.take(runtime));
    }

    fn poll_with(&mut self, output: &str, take: impl FnOnce(&Step) -> Result<String, String>) {
        let Some(step) = self.rest.as_slice().first() else { return };
        if std::mem::take(&mut self.has_ended) && step.fresh {
            self.from = output.len();
        }
        let Some(at) = output.get(self.from..).and_then(|new| new.find(step.trigger)) else {
            // Complete lines are not searched again: a guest may print all the time.
            let end = output.len().saturating_sub(step.trigger.len());
            let lines = output.as_bytes()[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            self.from = self.from.max(lines);
            return;
        };
        match take(step) {
            Ok(said) if step.agrees => {
                let exits = exits_taken(&said).unwrap_or_else(|| "?".into());
                self.accounts.push(format!("exits counted {exits}, exits taken {exits}, difference 0\n"));
            }
            Ok(_) => {}
            Err(problem) => self.problems.push(problem),
        }
        // Output received while the command ran counts for the next step, too, which may wait for it.
        self.from += at + step.trigger.len();
        self.has_ended = true;
        self.rest.next();
    }

    /// Faults at the end, with these accounts.
    pub fn conclude(mut self, accounts: &str) -> Vec<String> {
        let missing = self.accounts.iter().filter(|account| !accounts.contains(account.as_str()));
        self.problems.extend(missing.map(|account| format!("no account at the end says {account:?}")));
        if let Some(step) = self.rest.next() {
            self.problems.push(format!("the output never had {:?}, for `stile {}`", step.trigger, step.words.join(" ")));
        }
        self.problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_comes_in_parts_is_found() {
        let steps = [Step::new("wörd", "", &[]), Step::new("wörd", "", &[])];
        let mut operator = Operator::new(&steps);
        for output in ["", "a wö", "a wörd w", "a wörd wörd", "a wörd wörd wörd"] {
            operator.poll_with(output, |_| Ok(String::new()));
        }
        assert_eq!(operator.conclude(""), [""; 0]);
    }

    #[test]
    fn only_new_output_triggers_a_fresh_step() {
        let steps = [Step::new("a", "", &[]), Step::new("b", "", &[]).fresh()];
        let mut operator = Operator::new(&steps);
        for (output, rest) in [("a b", 1), ("a b b", 1), ("a b b b", 0)] {
            operator.poll_with(output, |_| Ok(String::new()));
            assert_eq!(operator.rest.len(), rest, "{output}");
        }
    }

    #[test]
    fn a_patient_step_is_repeated_for_a_time() {
        let attempts = |step: &Step, limit, failures| {
            let mut given = Vec::new();
            let result = step.insist(limit, |words| {
                given.push(words.concat());
                if given.len() > failures { Ok(String::new()) } else { Err("not yet".to_owned()) }
            });
            (given, result.is_ok())
        };
        let (long, step) = (Duration::from_secs(600), Step::new("", "a", &[]));
        assert_eq!(attempts(&step.clone().patient(), long, 2), (vec!["a".to_owned(); 3], true));
        assert_eq!(attempts(&step.clone().patient(), Duration::ZERO, 2), (vec!["a".to_owned()], false));
        assert_eq!(attempts(&step.clone().otherwise("b"), long, 2), (vec!["a".to_owned(), "b".to_owned()], false));
        assert_eq!(attempts(&step, long, 2), (vec!["a".to_owned()], false));
    }

    #[test]
    fn figures_are_compared_with_the_accounts() {
        let steps = [Step::new("", "", &[]).agrees()];
        let metrics = "# TYPE stile_vcpu_exits counter\n\
                       stile_vcpu_exits_total{vcpu=\"0\"} 4\nstile_vcpu_exits_total{vcpu=\"1\"} 8\n# EOF\n";
        for said in [r#"[{"vm":"a","exits_taken":12,"unaccounted":0}]"#, metrics] {
            let conclude = |accounts: &str| {
                let mut operator = Operator::new(&steps);
                operator.poll_with("", |_| Ok(said.into()));
                operator.conclude(accounts)
            };
            assert_eq!(conclude("exits counted 12, exits taken 12, difference 0\n"), [""; 0]);
            assert_eq!(conclude("exits counted 112, exits taken 112, difference 0\n").len(), 1);
        }
    }

    #[test]
    fn steps_wait_for_their_text_and_must_all_be_taken() {
        let steps = [Step::new("a", "", &[]), Step::new("a", "", &[])];
        let mut operator = Operator::new(&steps);
        operator.poll_with("b", |_| unreachable!());
        operator.poll_with("ba", |_| Err("wrong".into()));
        operator.poll_with("bab", |_| unreachable!());
        assert_eq!(operator.problems, ["wrong"]);
        assert!(operator.conclude("").iter().any(|problem| problem.contains("never had \"a\"")));
    }
}
