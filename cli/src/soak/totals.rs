//! Totals of all campaigns, kept in a file: a campaign that is stopped, or another one at the same time, adds its rounds.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::plan::Round;
use super::verdict::Outcome;

/// Totals of one kind of machine.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Number of complete rounds.
    pub rounds: u64,
    /// Number of failed rounds.
    pub failed: u64,
    /// Operations of the attacking guests.
    pub operations: u64,
    /// Exits.
    pub exits: u64,
}

/// Totals by kind of machine, as [`Round::kind`] names it.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Totals(pub BTreeMap<String, Count>);

impl Totals {
    /// Adds a round.
    pub fn add(&mut self, round: &Round, outcome: &Outcome) {
        let count = self.0.entry(round.kind().to_owned()).or_default();
        count.rounds += 1;
        count.failed += u64::from(!outcome.problems.is_empty());
        count.operations += outcome.operations;
        count.exits += outcome.exits;
    }

    /// All kinds together.
    pub fn sum(&self) -> Count {
        self.0.values().fold(Count::default(), |sum, count| Count {
            rounds: sum.rounds + count.rounds,
            failed: sum.failed + count.failed,
            operations: sum.operations + count.operations,
            exits: sum.exits + count.exits,
        })
    }

    /// Adds a round to the totals of a file, and returns them. A file that does not exist has none.
    ///
    /// # Errors
    /// The file can't be read or written, or is not one of totals.
    pub fn record(path: &Path, round: &Round, outcome: &Outcome) -> Result<Self> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.as_mut().map_err(|error| anyhow::anyhow!("opening {}: {error}", path.display()))?;
        flock(&*file, FlockOperation::LockExclusive).with_context(|| format!("locking {}", path.display()))?;
        Self::update(file, round, outcome).with_context(|| format!("the totals in {}", path.display()))
    }

    fn update(file: &mut File, round: &Round, outcome: &Outcome) -> Result<Self> {
        let text = std::io::read_to_string(&*file)?;
        let mut totals: Self = if text.trim().is_empty() { Self::default() } else { serde_json::from_str(&text)? };
        totals.add(round, outcome);
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(serde_json::to_string_pretty(&totals)?.as_bytes())?;
        file.write_all(b"\n")?;
        Ok(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Arch;

    #[test]
    fn rounds_of_several_campaigns_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/totals.json");
        let round = Round::new(Arch::X86_64, 1, 100);
        let good = Outcome { operations: 10, exits: 5, ..Outcome::default() };
        let bad = Outcome { problems: vec!["it hangs".to_owned()], ..Outcome { operations: 3, ..Outcome::default() } };
        Totals::record(&path, &round, &good).unwrap();
        let totals = Totals::record(&path, &round, &bad).unwrap();
        assert_eq!(totals.0["x86_64"], Count { rounds: 2, failed: 1, operations: 13, exits: 5 });
        assert_eq!(totals.sum().operations, 13);
        fs::write(&path, "noise").unwrap();
        assert!(Totals::record(&path, &round, &good).is_err(), "totals must not be overwritten by mistake");
    }
}
