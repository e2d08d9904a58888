//! Costs of a load's request on a path: a row of the table, and a line of JSON.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::load::Load;
use super::path::Path;
use super::run::Run;
use crate::full::Figure;
use crate::number::number;

/// A measured cost.
#[derive(Debug)]
pub struct Row {
    /// The load.
    pub load: &'static Load,
    /// The path of its requests.
    pub path: Path,
    /// Cost of a request, with the exits of all VMs.
    pub figure: Figure,
    /// Exits per request of the VM that makes the requests, if it is a VM.
    pub client: Option<f64>,
    /// Exits per request for budgets.
    pub bound: Bound,
}

/// Exits per request in which a device has at most one interrupt per request.
///
/// A device interrupts once for each request, or once for several that it completes together, depending on the developer's machine. If it
/// completes more of them together in the first run than in the second, the difference of both runs' interrupts exceeds that of their
/// requests. So interrupts are all those of the second run, the boot's included, divided by its requests. Other exits are the difference of
/// both runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// Of all VMs.
    pub exits: f64,
    /// Of the VM that makes the requests, if it is a VM.
    pub client: Option<f64>,
}

/// The row of the ledger for interrupts of devices.
const DEVICE: &str = "IRQ: device";

/// Exits by reason.
type Exits = BTreeMap<String, u64>;

impl Bound {
    /// Bounds the exits of each request. `further`: the number of requests by which the second run exceeds the first.
    fn of(first: &Run, second: &Run, further: u32) -> Self {
        let others = |exits: &Exits| exits.iter().filter(|(reason, _)| *reason != DEVICE).map(|(_, number)| *number as f64).sum::<f64>();
        let bound = |one: &Exits, two: &Exits| {
            let interrupts = two.get(DEVICE).copied().unwrap_or(0) as f64;
            interrupts / f64::from(second.requests) + (others(two) - others(one)) / f64::from(further)
        };
        let client = first.client.as_ref().zip(second.client.as_ref());
        Self { exits: bound(&first.counts.exits, &second.counts.exits), client: client.map(|(one, two)| bound(one, two)) }
    }
}

/// A line of JSON.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    load: &'a str,
    path: &'a str,
    cpu: &'a str,
    requests: u32,
    /// Figures of one request.
    instructions: f64,
    instructions_hypervisor: f64,
    exits: f64,
    exits_client: Option<f64>,
    exits_by_reason: &'a BTreeMap<String, f64>,
}

impl Row {
    /// The cost of each of the requests by which the second run exceeds the first.
    ///
    /// # Errors
    /// The second run made no more requests than the first, or took no more instructions.
    pub fn of(load: &'static Load, path: Path, first: &Run, second: &Run) -> Result<Self> {
        let further = second.requests.checked_sub(first.requests).filter(|further| *further > 0);
        let further = further.with_context(|| format!("the second run made {} requests, the first {}", second.requests, first.requests))?;
        let figure = Figure::difference(&first.counts, &second.counts, further)?;
        let sum = |exits: &Exits| exits.values().sum::<u64>() as f64;
        let each = |(first, second): (&Exits, &Exits)| (sum(second) - sum(first)) / f64::from(further);
        let client = first.client.as_ref().zip(second.client.as_ref()).map(each);
        Ok(Self { load, path, figure, client, bound: Bound::of(first, second, further) })
    }

    /// The line of JSON.
    pub fn line<'a>(&'a self, cpu: &'a str) -> Line<'a> {
        let Self { load, path, figure, client, .. } = self;
        Line {
            load: load.work.name,
            path: path.name(),
            cpu,
            requests: figure.units,
            instructions: figure.instructions,
            instructions_hypervisor: figure.hypervisor,
            exits: figure.total(),
            exits_client: *client,
            exits_by_reason: &figure.exits,
        }
    }
}

/// The table for people.
pub fn table(cpu: &str, rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["load", "path", "instructions", "native", "hypervisor", "exits", "the client's", "by reason"]);
    let mut last = "";
    for Row { load, path, figure, client, .. } in rows {
        let native = rows.iter().find(|other| other.load.work.name == load.work.name && other.path == Path::Native);
        let under = |text: String| if *path == Path::Native { String::new() } else { text };
        table.add_row([
            if last == load.work.name { String::new() } else { format!("{}, a {}", load.work.name, load.work.unit) },
            path.name().to_owned(),
            number(figure.instructions.round()),
            native.map_or_else(String::new, |native| format!("{:.2}x", figure.instructions / native.figure.instructions)),
            under(number(figure.hypervisor.round())),
            under(format!("{:.2}", figure.total())),
            client.map_or_else(String::new, |exits| format!("{exits:.2}")),
            under(figure.reasons()),
        ]);
        last = load.work.name;
    }
    for column in table.column_iter_mut().skip(2).take(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "Requests on -cpu {cpu}: instructions of all CPUs, those of the hypervisor among them, and exits of all VMs, under Stile without \
         those of timers.\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::full::Counts;
    use crate::io::load::LOADS;
    use crate::json_lines;

    /// A run of `units` requests with 100 kicks and 1000 instructions before the first of them.
    fn run(requests: u32, each: u64, client: Option<u64>) -> Run {
        let units = u64::from(requests);
        let counts =
            Counts { exits: [("kick".to_owned(), 100 + 2 * units)].into(), instructions: 1000 + units * each, hypervisor: 150 * units };
        Run { requests, counts, client: client.map(|each| [("kick".to_owned(), 50 + each * units)].into()) }
    }

    fn row(path: Path, each: u64, client: Option<u64>) -> Row {
        let units = LOADS[0].work.units;
        Row::of(&LOADS[0], path, &run(units, each, client), &run(2 * units, each, client)).unwrap()
    }

    #[test]
    fn a_row_holds_one_path_against_none() {
        let rows = [row(Path::Served, 1500, Some(1)), row(Path::Native, 1000, None)];
        let table = table("max", &rows);
        let line = |path: &str| table.lines().rfind(|line| line.contains(path)).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(line("served"), "fio_1, a read of 4 KiB stile-served 1,500 1.50x 150 2.00 1.00 kick 2.00");
        assert_eq!(line("native"), "native 1,000 1.00x");
        let lines = json_lines::write(&[rows[0].line("max")]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&lines).unwrap();
        assert_eq!(
            (json["path"].as_str(), json["exits"].as_f64(), json["exits_client"].as_f64()),
            (Some("stile-served"), Some(2.0), Some(1.0))
        );
    }

    /// A disk that completed several requests at once in the first run, and only there: 1.06 interrupts for each further request.
    #[test]
    fn interrupts_are_bounded_by_requests() {
        let run = |requests: u32, interrupts: u64| {
            let units = u64::from(requests);
            let exits: Exits = [(DEVICE.to_owned(), interrupts), ("kick".to_owned(), 7 + units / 100)].into();
            Run { requests, counts: Counts { exits: exits.clone(), instructions: 1000 * units, hypervisor: 0 }, client: Some(exits) }
        };
        let row = Row::of(&LOADS[1], Path::Assigned, &run(8000, 6720), &run(16_000, 15_200)).unwrap();
        assert!(row.figure.total() > 1.06 && row.client > Some(1.06), "{row:?}");
        assert_eq!(row.bound, Bound { exits: 0.96, client: Some(0.96) });
    }

    #[test]
    fn a_run_that_makes_no_requests_is_no_measurement() {
        let run = run(8000, 1000, None);
        assert!(Row::of(&LOADS[0], Path::Native, &run, &run).is_err());
    }
}
