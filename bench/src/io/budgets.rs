//! Limits of requests' exits (`bench/budgets.toml`, table `io`), and the test that enforces them.

use anyhow::Result;

use super::limit::ByPath;
use super::path::Path;
use super::row::Row;
use super::{load, measure};
use crate::budgets;
use stile::config::Arch;

/// The test's name.
pub const TEST: &str = "budgets/io";

/// Measures all loads on all paths under Stile. The error names those that exceed their limits.
///
/// # Errors
/// An exceeded limit; a failed build or run.
pub fn test() -> Result<(), String> {
    let failures = run().map_err(|error| format!("{error:#}"))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn run() -> Result<Vec<String>> {
    let budgets = budgets::read()?.io;
    let loads = load::choose(&[]).map_err(anyhow::Error::msg)?;
    let rows = measure(&loads, &Path::STILE, Arch::Aarch64.default_cpu_model(), &|_| {})?;
    Ok(rows.iter().flat_map(|row| exceeded(&budgets, row)).collect())
}

/// The limits that a row exceeds.
fn exceeded(budgets: &ByPath, row: &Row) -> Vec<String> {
    let what = format!("{}, {}", row.load.work.name, row.path.name());
    let Some(budget) = budgets.get(row.path.name()).and_then(|budgets| budgets.get(row.load.work.name)) else {
        return vec![format!("{what} has no budget")];
    };
    let client = row.bound.client.unwrap_or(f64::INFINITY);
    let sides = [("all VMs", row.bound.exits, budget.exits), ("the client", client, budget.client)];
    let over = sides.into_iter().filter(|(_, exits, most)| exits > most);
    over.map(|(whose, exits, most)| format!("{what}: {exits:.3} exits of {whose} a request, and its budget is {most}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::limit::Budget;
    use super::super::row::Bound;
    use super::*;
    use crate::full::{Counts, Figure};
    use crate::io::load::LOADS;

    fn row(exits: u64, client: Option<f64>) -> Row {
        let counts = Counts { exits: [("kick".to_owned(), exits)].into(), instructions: 1000, hypervisor: 0 };
        let figure = Figure::of_each(&counts, 100);
        let bound = Bound { exits: figure.total(), client };
        Row { load: &LOADS[0], path: Path::Served, figure, client, bound }
    }

    #[test]
    fn each_limit_is_held() {
        let budgets = ByPath::from([("stile-served".to_owned(), [("fio_1".to_owned(), Budget { exits: 4.0, client: 2.0 })].into())]);
        assert_eq!(exceeded(&budgets, &row(400, Some(2.0))), [""; 0]);
        assert_eq!(
            exceeded(&budgets, &row(410, Some(2.0))),
            ["fio_1, stile-served: 4.100 exits of all VMs a request, and its budget is 4"]
        );
        assert!(exceeded(&budgets, &row(400, Some(2.1)))[0].contains("2.100 exits of the client"));
        assert!(exceeded(&budgets, &row(400, None))[0].contains("the client"), "it was not counted");
        assert!(exceeded(&ByPath::new(), &row(0, Some(0.0)))[0].contains("no budget"));
    }

    #[test]
    fn every_load_has_a_limit_on_every_path() {
        let budgets = budgets::read().unwrap().io;
        let given = |path: &Path, load: &str| budgets.get(path.name()).is_some_and(|budgets| budgets.contains_key(load));
        assert!(Path::STILE.iter().all(|path| LOADS.iter().all(|load| given(path, load.work.name))), "{budgets:?}");
    }
}
