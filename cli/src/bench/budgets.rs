//! The budgets: the most that each operation may cost under Stile (`bench/budgets.toml`), and the test that holds Stile to them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use stile_blob::Techniques;

use super::host::{Figure, Host, Request};
use super::operation::{self, OPERATIONS};
use super::{counts, probe};
use crate::cargo;

/// The test's name.
pub const TEST: &str = "budgets";

/// Of each operation: so few because the figures are exact.
const ITERATIONS: u32 = 512;

/// What a figure may be off by: its digits after the point.
const ROUNDING: f64 = 0.001;

/// The most that an operation may cost.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    instructions: f64,
    exits: f64,
    /// MRS at EL2.
    sysreg_reads: f64,
    /// MSR at EL2.
    sysreg_writes: f64,
    /// DSB, DMB, ISB and SB at EL2.
    barriers: f64,
}

/// Budgets by CPU model and operation.
type ByModel = BTreeMap<String, BTreeMap<String, Budget>>;

/// All budgets.
#[derive(Debug, Deserialize)]
pub struct Budgets {
    /// Of L2's operations: Stile's own instructions only.
    pub nested: ByModel,
    /// Of the operations of Stile's own guests.
    #[serde(flatten)]
    plain: ByModel,
}

/// Measures every operation that has a budget. The error says which ones cost more, and by how much.
pub fn test() -> Result<(), String> {
    let failures = measure().map_err(|error| format!("{error:#}"))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn measure() -> Result<Vec<String>> {
    let budgets = read()?.plain;
    let (probe, plugin) = (probe::build()?, counts::build()?);
    let mut failures = Vec::new();
    for (cpu, budgets) in &budgets {
        let names: Vec<_> = budgets.keys().cloned().collect();
        let operations = operation::choose(&names).map_err(anyhow::Error::msg)?;
        let request = Request {
            probe: &probe,
            cpu,
            operations: &operations,
            iterations: ITERATIONS,
            techniques: Techniques::default(),
            plugin: Some(&plugin),
            progress: &|_| {},
        };
        let figures = Host::Stile.measure(&request)?;
        failures.extend(figures.iter().flat_map(|figure| exceeded(cpu, figure, budgets.get(&figure.operation))));
    }
    Ok(failures)
}

/// Reads the repository's budgets.
///
/// # Errors
/// The file can't be read, or is not as it should be.
pub fn read() -> Result<Budgets> {
    let path = cargo::repository().join("bench/budgets.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("reading {}", path.display()))
}

/// Reads the file's text. Every operation must have a budget on the model `max`.
fn parse(text: &str) -> Result<Budgets> {
    let budgets: Budgets = toml::from_str(text)?;
    let most = budgets.plain.get("max");
    for operation in OPERATIONS {
        let given = most.is_some_and(|budgets| budgets.contains_key(operation.name));
        anyhow::ensure!(given, "{} has no budget on max", operation.name);
    }
    Ok(budgets)
}

/// Sentences about what is more than the budget, or was not counted.
pub fn exceeded(cpu: &str, figure: &Figure, budget: Option<&Budget>) -> Vec<String> {
    let Some(budget) = budget else { return Vec::new() };
    let outside = figure.outside.as_ref();
    let costs = [
        ("instructions", Some(figure.instructions), budget.instructions),
        ("exits", figure.exits, budget.exits),
        ("system-register reads", outside.map(|outside| outside.sysreg_reads), budget.sysreg_reads),
        ("system-register writes", outside.map(|outside| outside.sysreg_writes), budget.sysreg_writes),
        ("barriers", outside.map(|outside| outside.barriers), budget.barriers),
    ];
    let sentence = |(what, cost, most): (&str, Option<f64>, f64)| match cost {
        None => Some(format!("{} on {cpu}: {what} were not counted", figure.operation)),
        Some(cost) if cost > most + ROUNDING => {
            Some(format!("{} on {cpu}: {cost:.3} {what}, {:.3} more than its budget of {most}", figure.operation, cost - most))
        }
        Some(_) => None,
    };
    costs.into_iter().filter_map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::super::host::Outside;
    use super::*;

    #[test]
    fn the_repositorys_budgets_can_be_read() {
        let budgets = read().unwrap();
        for budgets in budgets.plain.values().chain(budgets.nested.values()) {
            let names: Vec<_> = budgets.keys().cloned().collect();
            operation::choose(&names).unwrap();
        }
    }

    const BUDGET: Budget = Budget { instructions: 35.0, exits: 1.0, sysreg_reads: 3.0, sysreg_writes: 0.0, barriers: 0.0 };

    /// A figure that is as much as the budget allows.
    fn figure() -> Figure {
        let outside =
            Outside { instructions: 33.0, sysreg_reads: 3.0, sysreg_writes: 0.0, barriers: 0.0, tlb_ops: 0.0, loads: 8.0, stores: 5.0 };
        Figure { operation: "hyp_call".to_owned(), instructions: 35.0, exits: Some(1.0), outside: Some(outside), iterations: 512 }
    }

    fn broken(change: fn(&mut Figure, &mut Outside)) -> Vec<String> {
        let mut figure = figure();
        let mut outside = figure.outside.unwrap();
        change(&mut figure, &mut outside);
        figure.outside = Some(outside);
        exceeded("max", &figure, Some(&BUDGET))
    }

    #[test]
    fn what_is_within_the_budget_passes() {
        assert!(broken(|_, _| ()).is_empty());
        assert!(broken(|figure, outside| (figure.instructions, outside.sysreg_reads) = (20.0, 1.0)).is_empty());
    }

    #[test]
    fn each_kind_that_grew_is_named() {
        assert_eq!(
            broken(|figure, _| figure.instructions = 36.5),
            ["hyp_call on max: 36.500 instructions, 1.500 more than its budget of 35"]
        );
        assert_eq!(broken(|figure, _| figure.exits = Some(2.0)), ["hyp_call on max: 2.000 exits, 1.000 more than its budget of 1"]);
        assert_eq!(
            broken(|_, outside| outside.sysreg_reads = 4.0),
            ["hyp_call on max: 4.000 system-register reads, 1.000 more than its budget of 3"]
        );
        assert_eq!(
            broken(|_, outside| outside.sysreg_writes = 1.0),
            ["hyp_call on max: 1.000 system-register writes, 1.000 more than its budget of 0"]
        );
        assert_eq!(broken(|_, outside| outside.barriers = 0.5), ["hyp_call on max: 0.500 barriers, 0.500 more than its budget of 0"]);
    }

    #[test]
    fn what_was_not_counted_fails() {
        let figure = Figure { exits: None, outside: None, ..figure() };
        assert_eq!(exceeded("max", &figure, Some(&BUDGET)).len(), 4);
    }
}
