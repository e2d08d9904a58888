//! What an operator does from another terminal while a scenario's machine runs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The machine's name in [`Step::words`].
pub const MACHINE: &str = "m";

/// How long a command of the operator's may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A command, and what must come of it.
#[derive(Debug, Clone)]
pub struct Step {
    /// It is given once standard output has this, of what was written since the step before ended.
    pub after: &'static str,
    /// The words after `stile`.
    pub words: Vec<&'static str>,
    /// The exit status.
    pub status: u8,
    /// Texts that its output or its messages have in them.
    pub says: Vec<&'static str>,
}

impl Step {
    /// A command that succeeds; its words are separated by spaces.
    pub fn new(after: &'static str, words: &'static str, says: &[&'static str]) -> Self {
        Self { after, words: words.split_whitespace().collect(), status: 0, says: says.to_vec() }
    }

    /// The same, with another status.
    pub fn fails(self, status: u8) -> Self {
        Self { status, ..self }
    }

    /// Gives the command, where the control sockets are in `runtime`. The error is a report for people.
    fn take(&self, runtime: &Path) -> Result<(), String> {
        let what = self.words.join(" ");
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg(program).args(&self.words).env("XDG_RUNTIME_DIR", runtime);
        let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{what}: {error}"))?;
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        if output.status.code() != Some(self.status.into()) {
            return Err(format!("`stile {what}` ended with {}, expected {}: {said}", output.status, self.status));
        }
        match self.says.iter().find(|text| !said.contains(**text)) {
            Some(text) => Err(format!("`stile {what}` did not say {text:?}: {said}")),
            None => Ok(()),
        }
    }
}

/// The steps that are left, and what they have found.
#[derive(Debug)]
pub struct Operator<'s> {
    rest: std::slice::Iter<'s, Step>,
    /// Where the output begins that the next step looks at.
    from: usize,
    /// What went wrong.
    pub problems: Vec<String>,
}

impl<'s> Operator<'s> {
    /// Before the first step.
    pub fn new(steps: &'s [Step]) -> Self {
        Self { rest: steps.iter(), from: 0, problems: Vec::new() }
    }

    /// Takes the next step if its text is in the output by now. `output` only grows; `runtime` is where the control sockets are.
    pub fn look(&mut self, output: &str, runtime: &Path) {
        self.look_and(output, |step| step.take(runtime));
    }

    fn look_and(&mut self, output: &str, take: impl FnOnce(&Step) -> Result<(), String>) {
        let Some(step) = self.rest.as_slice().first() else { return };
        let Some(at) = output.get(self.from..).and_then(|new| new.find(step.after)) else { return };
        self.problems.extend(take(step).err());
        // What came while the command ran is the next step's, too: it may wait for that.
        self.from += at + step.after.len();
        self.rest.next();
    }

    /// What is wrong at the end.
    pub fn conclude(mut self) -> Vec<String> {
        if let Some(step) = self.rest.next() {
            self.problems.push(format!("the output never had {:?}, for `stile {}`", step.after, step.words.join(" ")));
        }
        self.problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_wait_for_their_text_and_must_all_be_taken() {
        let steps = [Step::new("a", "", &[]), Step::new("a", "", &[])];
        let mut operator = Operator::new(&steps);
        operator.look_and("b", |_| unreachable!());
        operator.look_and("ba", |_| Err("wrong".into()));
        operator.look_and("bab", |_| unreachable!());
        assert_eq!(operator.problems, ["wrong"]);
        assert!(operator.conclude().iter().any(|problem| problem.contains("never had \"a\"")));
    }
}
