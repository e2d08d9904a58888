//! The budgets of L2's operations and of L1's boot on a PC, and the test that holds Stile to them.

use anyhow::{Context, Result};

use super::figure::Figure;
use super::operations::{self, KVM};
use super::{boot, measure};
use crate::budgets::{self, exceeded, missing};
use crate::host;
use crate::platform;
use stile::config::Arch;
use stile::emulator;

/// The test's name.
pub const TEST: &str = "pc/nested/probe-as-l2";

/// Measures L1's boot, and every operation that has a budget, in a VM of KVM.
///
/// # Errors
/// A line for each budget that is exceeded, or the reason why nothing can be measured.
pub fn test() -> Result<(), String> {
    let failures = failures().map_err(|error| format!("{error:#}"))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn failures() -> Result<Vec<String>> {
    emulator::ensure(Arch::X86_64)?;
    let all = budgets::read()?;
    let mut failures = Vec::new();
    for (of, budgets) in all.nested.iter().filter(|(of, _)| budgets::arch(of) == Arch::X86_64) {
        let (cpu, l1) = of.split_once('/').unwrap_or((of, KVM));
        let names: Vec<_> = budgets.keys().cloned().collect();
        let figures = measure::measure(l1, cpu, &operations::choose(&names).map_err(anyhow::Error::msg)?)?;
        let what = format!("{cpu}, under {l1}");
        failures.extend(figures.iter().flat_map(|figure| exceeded(&what, &own(figure), budgets.get(&figure.operation))));
        failures.extend(missing(&what, figures.iter().map(|figure| figure.operation.as_str()), budgets));
    }
    let cpu = platform::of(Arch::X86_64).cpu();
    let budget = all.boot.get(cpu).with_context(|| format!("L1's boot has no budget on {cpu}"))?;
    failures.extend(boot::measure(cpu)?.exceeded(budget));
    Ok(failures)
}

/// Returns Stile's own part of a figure. L1's instructions are left out: they change with Debian's kernel.
fn own(figure: &Figure) -> host::Figure {
    host::Figure {
        operation: figure.operation.clone(),
        instructions: figure.instructions_outside,
        exits: Some(figure.exits()),
        outside: None,
        vmx: Some(figure.vmx),
        reasons: Default::default(),
        iterations: figure.iterations,
    }
}

#[cfg(test)]
mod tests {
    use super::super::operations::ENLIGHTENED;
    use super::*;

    #[test]
    fn each_operation_has_a_budget() {
        let all = budgets::read().unwrap();
        let cpu = platform::of(Arch::X86_64).cpu();
        let budgets = &all.nested[cpu];
        assert_eq!(operations::choose(&budgets.keys().cloned().collect::<Vec<_>>()).unwrap(), operations::all());
        assert!(all.boot.contains_key(cpu));
        let enlightened = &all.nested[&format!("{cpu}/{ENLIGHTENED}")];
        assert_eq!(enlightened.len() + 1, budgets.len(), "all but the test guest's");
        let others = all.nested.keys().filter(|of| budgets::arch(of) == Arch::X86_64).filter_map(|of| of.split_once('/'));
        assert!(others.map(|(_, l1)| l1).all(|l1| l1 == ENLIGHTENED));
    }
}
