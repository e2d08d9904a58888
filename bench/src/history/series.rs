//! Series of an operation's costs over commits.

use serde::Deserialize;

use super::commits::{Commit, Version};
use crate::host::STILE;
use stile::config::Arch;

/// The series to show.
#[derive(Debug)]
pub struct Selection<'a> {
    /// Operations; all if empty.
    pub operations: &'a [String],
    /// The architecture.
    pub arch: Arch,
    /// The CPU model.
    pub cpu: &'a str,
}

/// A smaller difference is the rounding of a figure.
const SAME: f64 = 0.5;

/// Source of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The most that an operation may cost, which the tests hold.
    Budget,
    /// A measurement of `--update`.
    Figure,
}

impl Source {
    /// Its name in tables and pictures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Figure => "measured",
        }
    }
}

/// A value that differs from the one before.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The commit with the change.
    pub commit: Commit,
    /// Per operation, all of the guest's and Stile's.
    pub instructions: f64,
    /// Per operation; none if not kept.
    pub exits: Option<f64>,
}

/// An operation's costs.
#[derive(Debug)]
pub struct Series {
    /// The operation.
    pub operation: String,
    /// Source of the values.
    pub source: Source,
    /// The changes, oldest first; never empty.
    pub steps: Vec<Step>,
}

/// A kept figure: the fields that all versions of the file have.
#[derive(Debug, Deserialize)]
struct Kept {
    host: String,
    #[serde(default)]
    arch: Arch,
    cpu: String,
    #[serde(default = "one")]
    level: u8,
    #[serde(default)]
    ablation: Option<String>,
    operation: String,
    instructions: f64,
    #[serde(default)]
    exits: Option<f64>,
}

const fn one() -> u8 {
    1
}

/// Collects the series of a selection, by operation in the order in which they appear.
pub fn collect(versions: &[Version], selection: &Selection<'_>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for version in versions {
        let budgets = budgets(&version.budgets, selection.cpu).into_iter().map(|value| (Source::Budget, value));
        let figures = figures(&version.figures, selection).into_iter().map(|value| (Source::Figure, value));
        for (source, (operation, instructions, exits)) in budgets.chain(figures) {
            if !selection.operations.is_empty() && !selection.operations.contains(&operation) {
                continue;
            }
            let step = Step { commit: version.commit.clone(), instructions, exits };
            match all.iter_mut().find(|series| series.source == source && series.operation == operation) {
                Some(series) => series.push(step),
                None => all.push(Series { operation, source, steps: vec![step] }),
            }
        }
    }
    // Both series of an operation are adjacent, in the order of the operations' first occurrence.
    let order: Vec<String> = all.iter().map(|series| series.operation.clone()).collect();
    all.sort_by_key(|series| (order.iter().position(|name| *name == series.operation), series.source));
    all
}

impl Series {
    /// Adds a value if it differs from the last one.
    fn push(&mut self, step: Step) {
        let differs = |last: &Step| {
            let exits = last.exits.unwrap_or(0.0) - step.exits.unwrap_or(0.0);
            (last.instructions - step.instructions).abs() >= SAME || exits.abs() >= 0.05
        };
        if self.steps.last().is_none_or(differs) {
            self.steps.push(step);
        }
    }
}

type Value = (String, f64, Option<f64>);

/// Stile's figures. Lines that no version of this program wrote are left out.
fn figures(text: &str, selection: &Selection<'_>) -> Vec<Value> {
    let kept = text.lines().filter_map(|line| serde_json::from_str::<Kept>(line).ok());
    let ours = |kept: &Kept| {
        (&kept.host[..], kept.arch, &kept.cpu[..], kept.level) == (STILE, selection.arch, selection.cpu, 1) && kept.ablation.is_none()
    };
    kept.filter(ours).map(|kept| (kept.operation, kept.instructions, kept.exits)).collect()
}

/// The budgets of a CPU model: of operations, and of those of a hypervisor's guest in a VM.
fn budgets(text: &str, cpu: &str) -> Vec<Value> {
    let Ok(table) = text.parse::<toml::Table>() else { return Vec::new() };
    let number = |value: &toml::Value| value.as_float().or_else(|| value.as_integer().map(|value| value as f64));
    let value = |(operation, budget): (&String, &toml::Value)| {
        Some((operation.clone(), budget.get("instructions").and_then(number)?, budget.get("exits").and_then(number)))
    };
    let of = |table: Option<&toml::Table>| -> Vec<Value> {
        let model = table.and_then(|table| table.get(cpu)).and_then(toml::Value::as_table);
        model.map_or(Vec::new(), |model| model.iter().filter_map(value).collect())
    };
    let in_l2 = of(table.get("nested").and_then(toml::Value::as_table))
        .into_iter()
        .map(|(name, rest, exits)| (format!("{name} of L2"), rest, exits));
    of(Some(&table)).into_iter().chain(in_l2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(id: &str, figures: &str, budgets: &str) -> Version {
        let commit = Commit { id: id.to_owned(), date: String::new(), subject: String::new() };
        Version { commit, figures: figures.to_owned(), budgets: budgets.to_owned() }
    }

    #[test]
    fn only_changes_are_steps() {
        let figure = |instructions: &str| {
            format!(
                "{{\"host\":\"stile\",\"cpu\":\"max\",\"operation\":\"ipi\",\"instructions\":{instructions},\"new\":1}}\nnot a figure\n\
                 {{\"host\":\"xen\",\"cpu\":\"max\",\"operation\":\"ipi\",\"instructions\":9}}\n"
            )
        };
        let budget = |instructions: u32| format!("[max]\nipi = {{ instructions = {instructions}, exits = 2 }}\n");
        let versions = [
            version("a", &figure("300.0"), ""),
            version("b", &figure("300.2"), &budget(310)),
            version("c", &figure("254"), &budget(310)),
            version("d", &figure("254"), &budget(255)),
        ];
        let selection = Selection { operations: &[], arch: Arch::Aarch64, cpu: "max" };
        let series = collect(&versions, &selection);
        let found: Vec<_> = series
            .iter()
            .map(|series| (series.source, series.steps.iter().map(|step| (&step.commit.id[..], step.instructions)).collect::<Vec<_>>()))
            .collect();
        assert_eq!(found, [(Source::Budget, vec![("b", 310.0), ("d", 255.0)]), (Source::Figure, vec![("a", 300.0), ("c", 254.0)])]);
        let none = Selection { operations: &["timer".to_owned()], ..selection };
        assert!(collect(&versions, &none).is_empty());
    }

    #[test]
    fn budgets_of_l2_have_names_of_their_own() {
        let budgets = "[max]\nipi = { instructions = 310, exits = 2 }\n[nested.max]\nipi = { instructions = 3000, exits = 3 }\n";
        let selection = Selection { operations: &[], arch: Arch::Aarch64, cpu: "max" };
        let found: Vec<_> = collect(&[version("a", "", budgets)], &selection)
            .into_iter()
            .map(|series| (series.operation, series.steps[0].instructions))
            .collect();
        assert_eq!(found, [("ipi".to_owned(), 310.0), ("ipi of L2".to_owned(), 3000.0)]);
    }
}
