//! `stile bench --history`: figures and budgets that the repository has kept, over its commits.
//!
//! Figures are measured by `--update`. Budgets are enforced by the tests at every commit, so their history names the commit that changed a
//! cost.

mod commits;
mod picture;
mod series;

use std::path::Path;

use anyhow::{Context, Result};

use crate::number::number;
use commits::Repository;
pub use series::Selection;
use series::{Series, Step};
use stile::{cargo, exit, out};

/// Prints the changes of each operation's instructions and exits, and draws them to the file `svg`, if given.
///
/// # Errors
/// The source is not a clone with a history; no kept figure has the name; the file can't be written.
pub fn history(selection: &Selection<'_>, svg: Option<&Path>) -> Result<u8> {
    let repository = Repository::new(cargo::repository());
    let versions = repository.versions()?;
    let series = series::collect(&versions, selection);
    if let Some(unknown) = selection.operations.iter().find(|name| series.iter().all(|series| series.operation != **name)) {
        let what = format!("no commit has a figure of {unknown} on {}; `stile bench --history` without --only lists them", selection.cpu);
        return Err(exit::usage(what));
    }
    if let Some(path) = svg {
        std::fs::write(path, picture::draw(&versions, &series, selection.cpu)).with_context(|| format!("writing {}", path.display()))?;
    }
    out::line(text(&series, selection.cpu))?;
    Ok(exit::OK)
}

/// A paragraph for each series: its name, and a line for each change.
fn text(series: &[Series], cpu: &str) -> String {
    let mut lines = vec![format!("Instructions and exits that Stile's operations cost on -cpu {cpu}, at the commits that changed them.")];
    for series in series {
        lines.push(format!("\n{} ({})", series.operation, series.source.name()));
        let before = [None].into_iter().chain(series.steps.iter().map(Some));
        lines.extend(before.zip(&series.steps).map(|(before, step)| line(before, step)));
    }
    lines.join("\n")
}

fn line(before: Option<&Step>, step: &Step) -> String {
    let change = match before {
        Some(before) if before.instructions > 0.0 => format!("{:+.1} %", 100.0 * (step.instructions / before.instructions - 1.0)),
        _ => String::new(),
    };
    let exits = step.exits.map_or(String::new(), |exits| format!("{} exits", number(exits)));
    let commit = &step.commit;
    format!("  {} {} {:>10} {:>9} {:>11}  {}", commit.date, commit.id, number(step.instructions), change, exits, commit.subject)
}

#[cfg(test)]
mod tests {
    use super::commits::Commit;
    use super::series::Source;
    use super::*;

    #[test]
    fn changes_are_relative_to_the_step_before() {
        let step = |id: &str, instructions, exits| Step {
            commit: Commit { id: id.to_owned(), date: "2026-11-02".to_owned(), subject: format!("commit {id}") },
            instructions,
            exits,
        };
        let steps = vec![step("aaaaaaa", 293.0, Some(1.0)), step("bbbbbbb", 126.0, None)];
        let text = text(&[Series { operation: "ipi".to_owned(), source: Source::Budget, steps }], "max");
        let lines: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["ipi", "(budget)"]);
        assert_eq!(lines[1], ["2026-11-02", "aaaaaaa", "293", "1", "exits", "commit", "aaaaaaa"]);
        assert_eq!(lines[2], ["2026-11-02", "bbbbbbb", "126", "-57.0", "%", "commit", "bbbbbbb"]);
    }
}
