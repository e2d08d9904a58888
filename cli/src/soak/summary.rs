//! Summary of all rounds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::account::Longest;
use super::plan::Round;
use super::totals::Totals;
use super::verdict::Outcome;
use crate::config::units;

/// A round that failed.
#[derive(Debug)]
pub struct Failure {
    problems: Vec<String>,
    replay: String,
    dir: PathBuf,
}

/// Results of all rounds so far.
#[derive(Debug, Default)]
pub struct Summary {
    /// Rounds that were run to their end.
    pub rounds: u64,
    /// Operations of the attacking guests.
    pub operations: u64,
    /// The rounds that failed.
    pub failures: Vec<Failure>,
    /// Totals of all campaigns, if they are kept.
    pub totals: Option<Totals>,
    exits: u64,
    kinds: BTreeMap<String, u64>,
    longest: Option<(Longest, Round)>,
    /// The neighbour's minimum share, in percent of each vCPU's fair share.
    share: Option<(u64, Round)>,
}

impl Summary {
    /// Adds a round, whose files are in `dir`.
    pub fn add(&mut self, round: &Round, outcome: Outcome, dir: &Path) {
        self.rounds += 1;
        self.operations += outcome.operations;
        self.exits += outcome.exits;
        for (kind, count) in outcome.kinds {
            *self.kinds.entry(kind).or_default() += count;
        }
        if let Some(longest) = outcome.longest
            && self.longest.as_ref().is_none_or(|(other, _)| longest.instructions > other.instructions)
        {
            self.longest = Some((longest, round.clone()));
        }
        if let Some((share, _)) = outcome.share {
            let part = share * (1 + round.vcpus) / 10;
            if self.share.as_ref().is_none_or(|(other, _)| part < *other) {
                self.share = Some((part, round.clone()));
            }
        }
        if !outcome.problems.is_empty() {
            self.failures.push(Failure { problems: outcome.problems, replay: round.replay(), dir: dir.to_owned() });
        }
    }

    /// The summary for programs, after so much time.
    pub fn object(&self, elapsed: Duration) -> Value {
        let failure = |failure: &Failure| json!({"problems": failure.problems, "replay": failure.replay, "directory": failure.dir});
        json!({
            "rounds": self.rounds,
            "operations": self.operations,
            "seconds": elapsed.as_secs_f64(),
            "exits": self.exits,
            "kinds": self.kinds,
            "longest_exit": self.longest.as_ref().map(|(longest, round)| {
                json!({"instructions": longest.instructions, "row": longest.row, "replay": round.replay()})
            }),
            "least_share_percent": self.share.as_ref().map(|(share, _)| share),
            "failures": self.failures.iter().map(failure).collect::<Value>(),
        })
    }

    /// The summary, after so much time.
    pub fn text(&self, elapsed: Duration) -> String {
        let mut text = String::new();
        let seconds = elapsed.as_secs_f64();
        // Writing to a string can't fail.
        let (rounds, exits) = (units::plural(self.rounds, "round"), units::plural(self.exits, "exit"));
        let _ = writeln!(text, "{rounds}, {} operations in {seconds:.0} s, {exits}", self.operations);
        for (kind, count) in &self.kinds {
            let _ = writeln!(text, "  {kind:<24} {count:>12}");
        }
        if let Some((longest, round)) = &self.longest {
            let _ = writeln!(text, "longest exit: {} instructions, {} ({})", longest.instructions, longest.row, round.replay());
        }
        if let Some((part, round)) = &self.share {
            let _ = writeln!(text, "the neighbour's least share: {part} % of a vCPU's fair share ({})", round.replay());
        }
        if let Some(totals) = &self.totals {
            for (kind, count) in totals.0.iter().map(|(kind, count)| (kind.as_str(), count)).chain([("all", &totals.sum())]) {
                let (rounds, operations, exits, failed) = (count.rounds, count.operations, count.exits, count.failed);
                let _ = writeln!(
                    text,
                    "total {kind:<16} {rounds:>6} rounds, {operations:>12} operations, {exits:>12} exits, {failed} failures"
                );
            }
        }
        let _ = writeln!(text, "failures: {}", self.failures.len());
        for failure in &self.failures {
            let _ = writeln!(text, "\n{}\n  files: {}", failure.replay, failure.dir.display());
            failure.problems.iter().for_each(|problem| {
                let _ = writeln!(text, "  {problem}");
            });
        }
        text
    }
}

/// A line on one round.
pub fn line(round: &Round, outcome: &Outcome) -> String {
    let verdict = if outcome.problems.is_empty() { "ok" } else { "FAILED" };
    let longest =
        outcome.longest.as_ref().map_or(String::new(), |longest| format!(", longest exit {} ({})", longest.instructions, longest.row));
    let share = outcome.share.map_or(String::new(), |(share, wait)| format!(", neighbour {share}/1000, waited {wait} us"));
    let mut line = format!(
        "round {:#018x} ({}) ... {verdict}: {} operations, {} exits{longest}{share}",
        round.seed,
        round.describe(),
        outcome.operations,
        outcome.exits
    );
    for problem in &outcome.problems {
        let _ = write!(line, "\n    {problem}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Arch;

    #[test]
    fn rounds_are_added_up_and_failures_name_their_replay() {
        let round = Round::new(Arch::Aarch64, 0xABC, 100);
        let good = |instructions| Outcome {
            kinds: [("devices".to_owned(), 3)].into(),
            operations: 10,
            exits: 5,
            longest: Some(Longest { instructions, row: "IRQ kick".to_owned() }),
            ..Outcome::default()
        };
        let mut summary = Summary::default();
        summary.add(&round, good(7), Path::new("/a"));
        summary.add(&round, good(9), Path::new("/b"));
        summary.add(&round, Outcome { problems: vec!["it hangs".to_owned()], ..good(8) }, Path::new("/c"));
        let text = summary.text(Duration::from_secs(2));
        assert!(text.starts_with("3 rounds, 30 operations in 2 s, 15 exits\n  devices "), "{text}");
        assert!(text.contains("longest exit: 9 instructions, IRQ kick"), "{text}");
        assert!(
            text.contains("failures: 1\n\n./stile soak --arch aarch64 --replay 0xabc --round 100\n  files: /c\n  it hangs\n"),
            "{text}"
        );
    }
}
