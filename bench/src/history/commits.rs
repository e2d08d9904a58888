//! Versions of the files with figures and budgets, from the repository's commits.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The file of the measured figures.
const FIGURES: &str = "bench/figures.jsonl";
/// The file of the budgets.
const BUDGETS: &str = "bench/budgets.toml";

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its abbreviated hash.
    pub id: String,
    /// The author's date: year, month and day.
    pub date: String,
    /// First line of the commit message.
    pub subject: String,
}

/// Contents of both files at a commit; empty if the file does not exist.
#[derive(Debug)]
pub struct Version {
    /// The commit.
    pub commit: Commit,
    /// `bench/figures.jsonl`.
    pub figures: String,
    /// `bench/budgets.toml`.
    pub budgets: String,
}

/// A clone of the repository.
#[derive(Debug)]
pub struct Repository(PathBuf);

impl Repository {
    /// The clone in a folder.
    pub fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// The versions at commits that changed one of the files, oldest first.
    ///
    /// # Errors
    /// The folder is not a clone, or its history does not contain the files.
    pub fn versions(&self) -> Result<Vec<Version>> {
        let log = self.git(&["log", "--reverse", "--first-parent", "--date=short", "--format=%h%x09%ad%x09%s", "--", FIGURES, BUDGETS])?;
        let commits: Vec<Commit> = log.lines().filter_map(parse).collect();
        ensure!(!commits.is_empty(), "{} has no history of {FIGURES}: it takes a clone, not an unpacked archive", self.0.display());
        let version = |commit: Commit| {
            let file = |path: &str| self.git(&["show", &format!("{}:{path}", commit.id)]).unwrap_or_default();
            Version { figures: file(FIGURES), budgets: file(BUDGETS), commit }
        };
        Ok(commits.into_iter().map(version).collect())
    }

    fn git(&self, arguments: &[&str]) -> Result<String> {
        let output =
            Command::new("git").arg("-C").arg(&self.0).args(arguments).output().context("starting git, which the history is read with")?;
        ensure!(output.status.success(), "git {}: {}", arguments[0], String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn parse(line: &str) -> Option<Commit> {
    let mut parts = line.splitn(3, '\t').map(str::to_owned);
    Some(Commit { id: parts.next()?, date: parts.next()?, subject: parts.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_the_order_of_commits() {
        let folder = tempfile::tempdir().unwrap();
        let repository = Repository::new(folder.path().to_owned());
        assert!(repository.versions().unwrap_err().to_string().contains("git log"), "no clone");
        repository.git(&["init", "-q"]).unwrap();
        std::fs::create_dir(folder.path().join("bench")).unwrap();
        for (text, subject) in [("one", "first: a subject\twith a tab"), ("two", "second")] {
            std::fs::write(folder.path().join(FIGURES), text).unwrap();
            repository.git(&["add", "."]).unwrap();
            repository.git(&["-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", subject]).unwrap();
        }
        let versions = repository.versions().unwrap();
        let texts: Vec<_> = versions.iter().map(|version| (&version.figures[..], &version.commit.subject[..])).collect();
        assert_eq!(texts, [("one", "first: a subject\twith a tab"), ("two", "second")]);
        assert!(versions.iter().all(|version| version.budgets.is_empty()));
    }
}
