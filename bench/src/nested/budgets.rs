//! The budgets of L2's operations and of L1's system call, and the tests that hold Stile to them: a hypervisor as L1 runs the probe.

use anyhow::{Context, Result};

use super::CPUS;
use super::figure::Figure;
use super::l0::{L0, Request, Tools};
use super::l1::L1;
use super::operations;
use super::setup::Setup;
use crate::budgets::{self, exceeded};
use crate::host;
use stile::config::Arch;

/// The tests: names, and the hypervisor that each is about.
pub const TESTS: [(&str, L1); 3] = [("nested/probe-as-l2", L1::Kvm), ("nested/nvhe-probe-as-l2", L1::KvmNvhe), ("nested/xen", L1::Xen)];

/// Measures every operation with a budget in a VM of this hypervisor. The error names those that exceed it, and the
/// excess.
///
/// # Errors
/// The budgets that are exceeded, or the reason for which nothing can be measured.
pub fn test(l1: L1) -> Result<(), String> {
    let failures = measure(l1).map_err(|error| format!("{error:#}"))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn measure(l1: L1) -> Result<Vec<String>> {
    let tools = Tools::new()?;
    let mut failures = Vec::new();
    for (of, budgets) in budgets::read()?.nested.iter().filter(|(of, _)| budgets::arch(of) == Arch::Aarch64) {
        let (cpu, of_l1) = machine(of)?;
        if of_l1 != l1 {
            continue;
        }
        let names: Vec<_> = budgets.keys().cloned().collect();
        let operations = operations::choose(&names).map_err(anyhow::Error::msg)?;
        let request = Request { tools: &tools, cpu, operations: &operations, progress: &|_| {} };
        let mut figures = Vec::new();
        for cpus in CPUS {
            figures.extend(Setup { l1, l0: L0::Nv2 }.measure(&request, cpus)?);
        }
        let what = format!("{cpu}, under {}", l1.name());
        failures.extend(figures.iter().flat_map(|figure| exceeded(&what, &own(figure), budgets.get(&figure.operation))));
        failures.extend(budgets::missing(&what, figures.iter().map(|figure| figure.operation.as_str()), budgets));
    }
    Ok(failures)
}

/// The CPU model of a table of budgets, and the hypervisor, whose name is behind a slash unless it is the first one.
///
/// # Errors
/// Unknown hypervisor.
pub fn machine(of: &str) -> Result<(&str, L1)> {
    let Some((cpu, name)) = of.split_once('/') else { return Ok((of, L1::Kvm)) };
    let l1 =
        L1::ALL.into_iter().find(|l1| l1.name() == name).with_context(|| format!("there is no hypervisor for the VM called {name}"))?;
    Ok((cpu, l1))
}

/// Stile's own part of a figure: L1's instructions are others', and change with L1.
fn own(figure: &Figure) -> host::Figure {
    host::Figure {
        operation: figure.operation.clone(),
        instructions: figure.l0.instructions,
        exits: Some(figure.exits()),
        outside: Some(figure.l0),
        vmx: None,
        reasons: Default::default(),
        iterations: figure.iterations,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_has_budgets_that_can_be_measured() {
        let mut budgets = budgets::read().unwrap().nested;
        budgets.retain(|of, _| budgets::arch(of) == Arch::Aarch64);
        for (of, budgets) in &budgets {
            let (_, l1) = machine(of).unwrap();
            let names: Vec<_> = budgets.keys().cloned().collect();
            assert!(operations::choose(&names).unwrap().iter().all(|operation| l1.has(operation)), "{of}");
        }
        for (name, l1) in TESTS {
            assert!(budgets.keys().any(|of| machine(of).unwrap().1 == l1), "{name}");
        }
        assert!(machine("max/vmware").is_err());
    }
}
