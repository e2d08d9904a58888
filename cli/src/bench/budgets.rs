//! The budgets: the most that each operation may cost under Stile (`bench/budgets.toml`), and the test that holds Stile to them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

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
struct Budget {
    instructions: f64,
    exits: f64,
}

/// Budgets by CPU model and operation.
type Budgets = BTreeMap<String, BTreeMap<String, Budget>>;

/// Measures every operation that has a budget. The error says which ones cost more, and by how much.
pub fn test() -> Result<(), String> {
    let failures = measure().map_err(|error| format!("{error:#}"))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn measure() -> Result<Vec<String>> {
    let path = cargo::repository().join("bench/budgets.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let budgets = parse(&text).with_context(|| format!("reading {}", path.display()))?;
    let (probe, plugin) = (probe::build()?, counts::build()?);
    let mut failures = Vec::new();
    for (cpu, budgets) in &budgets {
        let names: Vec<_> = budgets.keys().cloned().collect();
        let operations = operation::choose(&names).map_err(anyhow::Error::msg)?;
        let request =
            Request { probe: &probe, cpu, operations: &operations, iterations: ITERATIONS, plugin: Some(&plugin), progress: &|_| {} };
        let figures = Host::Stile.measure(&request)?;
        failures.extend(figures.iter().flat_map(|figure| exceeded(cpu, figure, budgets.get(figure.operation))));
    }
    Ok(failures)
}

/// Reads the file. Every operation must have a budget on the model `max`.
fn parse(text: &str) -> Result<Budgets> {
    let budgets: Budgets = toml::from_str(text)?;
    let most = budgets.get("max");
    for operation in OPERATIONS {
        let given = most.is_some_and(|budgets| budgets.contains_key(operation.name));
        anyhow::ensure!(given, "{} has no budget on max", operation.name);
    }
    Ok(budgets)
}

/// Sentences about what is more than the budget.
fn exceeded(cpu: &str, figure: &Figure, budget: Option<&Budget>) -> Vec<String> {
    let Some(budget) = budget else { return Vec::new() };
    let costs = [("instructions", Some(figure.instructions), budget.instructions), ("exits", figure.exits, budget.exits)];
    let more = |(what, cost, most): (&str, Option<f64>, f64)| {
        let cost = cost.filter(|cost| *cost > most + ROUNDING)?;
        Some(format!("{} on {cpu}: {cost:.3} {what}, {:.3} more than its budget of {most}", figure.operation, cost - most))
    };
    costs.into_iter().filter_map(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repositorys_budgets_can_be_read() {
        let text = std::fs::read_to_string(cargo::repository().join("bench/budgets.toml")).unwrap();
        for budgets in parse(&text).unwrap().values() {
            let names: Vec<_> = budgets.keys().cloned().collect();
            operation::choose(&names).unwrap();
        }
    }

    #[test]
    fn what_grew_is_named() {
        let figure =
            |instructions, exits| Figure { operation: "hyp_call", instructions, exits: Some(exits), outside: None, iterations: 512 };
        let budget = Budget { instructions: 35.0, exits: 1.0 };
        assert!(exceeded("max", &figure(35.0, 1.0), Some(&budget)).is_empty());
        assert!(exceeded("max", &figure(20.0, 0.0), Some(&budget)).is_empty());
        assert_eq!(
            exceeded("max", &figure(36.5, 1.0), Some(&budget)),
            ["hyp_call on max: 36.500 instructions, 1.500 more than its budget of 35"]
        );
        assert_eq!(exceeded("max", &figure(40.0, 2.0), Some(&budget)).len(), 2);
    }
}
