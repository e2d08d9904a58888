//! The budgets of L2's operations, and the test that holds Stile to them: Debian's KVM as L1 runs the probe.

use anyhow::Result;

use super::ITERATIONS;
use super::figure::Figure;
use super::l0::{L0, Request};
use crate::bench::budgets::{self, exceeded};
use crate::bench::{counts, host, platform, probe, under_stile};
use crate::config::Arch;
use crate::emulator;

/// The test's name.
pub const TEST: &str = "nested/probe-as-l2";

/// Measures every operation that has a budget. The error says which ones cost more, and by how much.
///
/// # Errors
/// That, or why nothing can be measured.
pub fn test() -> Result<(), String> {
    let failures = measure().map_err(|error| format!("{error:#}"))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn measure() -> Result<Vec<String>> {
    emulator::installed()?;
    let budgets = budgets::read()?.nested;
    let (probe, plugin, hypervisor) = (probe::build(Arch::Aarch64)?, counts::build()?, under_stile::hypervisor(Arch::Aarch64)?);
    let mut failures = Vec::new();
    for (cpu, budgets) in &budgets {
        let names: Vec<_> = budgets.keys().cloned().collect();
        let operations = platform::of(Arch::Aarch64).choose(&names).map_err(anyhow::Error::msg)?;
        let request = Request {
            probe: &probe,
            cpu,
            operations: &operations,
            iterations: ITERATIONS,
            hypervisor: &hypervisor,
            plugin: &plugin,
            progress: &|_| {},
        };
        for figure in L0::Nv2.measure(&request, 1)? {
            failures.extend(exceeded(&format!("{cpu}, as L2"), &own(&figure), budgets.get(&figure.operation)));
        }
    }
    Ok(failures)
}

/// Stile's own part of a figure: L1's instructions are those of Debian's kernel, which changes.
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
