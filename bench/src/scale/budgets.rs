//! Limits of operations' cost and sharing on a machine of busy CPUs (`bench/budgets.toml`, table `scale`), and the test
//! that enforces them.

use anyhow::Result;

use super::figure::Figure;
use super::{Numbers, measure};
use crate::{budgets, platform};
use stile::config::Arch;

/// The test's name.
pub const TEST: &str = "budgets/scale";

/// The numbers of CPUs that it compares.
const CPUS: [u32; 2] = [2, 8];

/// Maximum ratio of an operation's costs on the larger and the smaller machine.
const GROWTH: f64 = 1.1;

/// Measures every operation with a limit. The error names those that share more with other CPUs, or cost more on a
/// larger machine.
///
/// # Errors
/// An exceeded limit; a failed build or run.
pub fn test() -> Result<(), String> {
    let failures = run().map_err(|error| format!("{error:#}"))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn run() -> Result<Vec<String>> {
    let limits = budgets::read()?.scale;
    let names: Vec<_> = limits.keys().cloned().collect();
    let platform = platform::of(Arch::Aarch64);
    let operations = platform.choose(&names).map_err(anyhow::Error::msg)?;
    let figures = measure(platform, &operations, platform.cpu(), Numbers { cpus: &CPUS, vms: &[] }, &|_| {})?;
    Ok(limits.iter().flat_map(|(name, shared)| failures(name, *shared, &figures)).collect())
}

/// The limits that an operation exceeds. `shared` is its maximum number of atomic writes to lines that others write.
fn failures(name: &str, shared: f64, figures: &[Figure]) -> Vec<String> {
    let [few, many] = CPUS.map(|cpus| figures.iter().find(|figure| figure.operation == name && figure.cpus == cpus));
    let Some((few, many)) = few.zip(many) else { return vec![format!("{name} was not measured")] };
    let mut failures = Vec::new();
    // A turn of the emulator that begins or ends within an operation is counted with it.
    if many.shared > shared + 0.05 {
        failures.push(format!("{name}: {:.2} atomic writes to lines that other CPUs write, and at most {shared} are allowed", many.shared));
    }
    let growth = many.instructions / few.instructions;
    if growth > GROWTH {
        failures.push(format!("{name}: {growth:.2} times as many instructions on {} CPUs as on {}", CPUS[1], CPUS[0]));
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;
    use crate::operation::{BROADCAST, RESTART};

    #[test]
    fn each_limit_is_held() {
        let figures = [figure(2, "ipi", 200.0), figure(8, "ipi", 219.0)];
        assert_eq!(failures("ipi", 1.0, &figures), [""; 0]);
        assert!(failures("ipi", 0.0, &figures)[0].contains("1.00 atomic writes"));
        let grown = [figure(2, "ipi", 200.0), figure(8, "ipi", 222.0)];
        assert!(failures("ipi", 1.0, &grown)[0].contains("1.11 times"));
        assert!(failures("ipi", 1.0, &figures[..1])[0].contains("not measured"));
    }

    #[test]
    fn every_operation_has_a_limit() {
        let limits = budgets::read().unwrap().scale;
        let mut names =
            super::super::figure::operations(Arch::Aarch64).iter().filter(|name| ![BROADCAST.name, RESTART.name].contains(name));
        assert!(names.all(|name| limits.contains_key(*name)), "{limits:?}");
    }
}
