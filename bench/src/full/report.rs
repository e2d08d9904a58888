//! Cost of work under each host: a table for people, and a line of JSON each for programs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::under::Counts;
use super::work::Work;
use crate::host::Host;
use crate::number::number;

/// Number of exit reasons in a row of the table.
const REASONS: usize = 4;

/// Cost of a unit of work under a host.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Number of measured units.
    pub units: u32,
    /// Exits by reason.
    pub exits: BTreeMap<String, f64>,
    /// Instructions of all CPUs, the hypervisor's included.
    pub instructions: f64,
    /// The hypervisor's.
    pub hypervisor: f64,
}

impl Figure {
    /// Returns the cost of a run that is one unit as a whole.
    pub fn whole(counts: &Counts) -> Self {
        Self::of_each(counts, 1)
    }

    /// Returns the cost of one of `units`, the only counted work.
    pub fn of_each(counts: &Counts, units: u32) -> Self {
        let each = |count: u64| count as f64 / f64::from(units);
        Self {
            units,
            exits: counts.exits.iter().map(|(reason, count)| (reason.clone(), each(*count))).collect(),
            instructions: each(counts.instructions),
            hypervisor: each(counts.hypervisor),
        }
    }

    /// Returns the cost of the `units` by which the second run exceeds the first.
    ///
    /// # Errors
    /// The difference is zero.
    pub fn difference(first: &Counts, second: &Counts, units: u32) -> anyhow::Result<Self> {
        let per_unit = |first: u64, second: u64| (second as f64 - first as f64) / f64::from(units);
        let of = |counts: &Counts, reason: &str| counts.exits.get(reason).copied().unwrap_or(0);
        let reasons: BTreeSet<&String> = first.exits.keys().chain(second.exits.keys()).collect();
        let exits = reasons.into_iter().map(|reason| (reason.clone(), per_unit(of(first, reason), of(second, reason))));
        let figure = Self {
            units,
            exits: exits.filter(|(_, count)| *count != 0.0).collect(),
            instructions: per_unit(first.instructions, second.instructions),
            hypervisor: per_unit(first.hypervisor, second.hypervisor),
        };
        ensure!(figure.instructions > 0.0, "twice as much work took no more instructions");
        Ok(figure)
    }

    /// All exits.
    pub fn total(&self) -> f64 {
        self.exits.values().sum()
    }

    /// The reasons with the most exits, with their counts.
    pub fn reasons(&self) -> String {
        let mut reasons: Vec<_> = self.exits.iter().collect();
        reasons.sort_by(|a, b| b.1.total_cmp(a.1));
        let shown = reasons.iter().take(REASONS).filter(|(_, count)| **count >= 0.01);
        shown.map(|(reason, count)| format!("{reason} {}", rounded(**count))).collect::<Vec<_>>().join(", ")
    }
}

/// All measurements.
#[derive(Debug)]
pub struct Results {
    cpu: String,
    rows: Vec<(&'static Work, Host, Figure)>,
}

/// A line of the JSON file.
#[derive(Debug, Serialize)]
struct Line<'a> {
    work: &'a str,
    unit: &'a str,
    host: &'a str,
    cpu: &'a str,
    level: u8,
    vcpus: u16,
    units: u32,
    /// Figures of one unit.
    instructions: f64,
    instructions_hypervisor: f64,
    exits: f64,
    exits_by_reason: &'a BTreeMap<String, f64>,
}

impl Results {
    /// Returns a report without measurements.
    pub fn new(cpu: &str) -> Self {
        Self { cpu: cpu.to_owned(), rows: Vec::new() }
    }

    /// Adds the cost of work under a host.
    pub fn add(&mut self, work: &'static Work, host: Host, figure: Figure) {
        self.rows.push((work, host, figure));
    }

    /// A table with a row for each piece of work and host.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["work", "under", "instructions", "native", "hypervisor", "share", "exits", "per million", "by reason"]);
        let mut last = "";
        for (work, host, figure) in &self.rows {
            let native = self.rows.iter().find(|(other, host, _)| other.name == work.name && *host == Host::Native);
            let guest = figure.instructions - figure.hypervisor;
            let under = |text: String| if *host == Host::Native { String::new() } else { text };
            table.add_row([
                if last == work.name { String::new() } else { format!("{}, a {}", work.name, work.unit) },
                host.name().to_owned(),
                number(figure.instructions.round()),
                native.map_or_else(String::new, |(_, _, native)| format!("{:.2}x", figure.instructions / native.instructions)),
                under(number(figure.hypervisor)),
                under(format!("{:.3} %", 100.0 * figure.hypervisor / figure.instructions)),
                under(rounded(figure.total())),
                under(rounded(1e6 * figure.total() / guest)),
                under(figure.reasons()),
            ]);
            last = work.name;
        }
        for column in table.column_iter_mut().skip(2).take(6) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!(
            "Real work on -cpu {}: for a unit of work, instructions of all CPUs, those of the hypervisor among them, exits, and exits per \
             million instructions of the guest.\n{table}",
            self.cpu
        )
    }

    /// Lines of JSON, an object each.
    pub fn json(&self) -> Vec<String> {
        let line = |(work, host, figure): &(&'static Work, Host, Figure)| {
            serde_json::to_string(&Line {
                work: work.name,
                unit: work.unit,
                host: host.name(),
                cpu: &self.cpu,
                level: 1,
                vcpus: work.vcpus,
                units: figure.units,
                instructions: figure.instructions,
                instructions_hypervisor: figure.hypervisor,
                exits: figure.total(),
                exits_by_reason: &figure.exits,
            })
        };
        self.rows.iter().filter_map(|row| line(row).ok()).collect()
    }
}

/// Formats a number to a hundredth; large ones to a tenth, with commas between the thousands.
fn rounded(value: f64) -> String {
    // Rounds to 0 first: a difference of runs can be a little less than nothing.
    let value = if value.abs() < 0.005 { 0.0 } else { value };
    if value.abs() >= 100.0 { number(value) } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::super::work::choose;
    use super::*;
    use stile::config::Arch;

    fn counts(instructions: u64, hypervisor: u64, exits: &[(&str, u64)]) -> Counts {
        Counts { exits: exits.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect(), instructions, hypervisor }
    }

    #[test]
    fn common_costs_are_subtracted() {
        let first = counts(1_000, 100, &[("boot", 40), ("timer", 10)]);
        let second = counts(1_500, 120, &[("boot", 40), ("timer", 20), ("kick", 5)]);
        let figure = Figure::difference(&first, &second, 10).unwrap();
        assert_eq!((figure.instructions, figure.hypervisor, figure.total()), (50.0, 2.0, 1.5));
        assert_eq!(figure.reasons(), "timer 1.00, kick 0.50");
        assert!(Figure::difference(&second, &second, 10).is_err());
    }

    #[test]
    fn a_row_holds_one_host_against_none() {
        let pipe = choose(Arch::Aarch64, &["pipe".to_owned()])[0];
        let mut results = Results::new("max");
        results.add(pipe, Host::Stile, Figure::whole(&counts(2_000_000, 1_000, &[("kick", 4)])));
        results.add(pipe, Host::Native, Figure::whole(&counts(1_600_000, 0, &[])));
        let table = results.table();
        let row = |host: &str| table.lines().rfind(|line| line.contains(host)).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row("stile"), "pipe, a round trip stile 2,000,000 1.25x 1,000 0.050 % 4.00 2.00 kick 4.00");
        assert_eq!(row("native"), "native 1,600,000 1.00x");
        let json: serde_json::Value = serde_json::from_str(&results.json()[0]).unwrap();
        assert_eq!((json["work"].as_str(), json["exits_by_reason"]["kick"].as_f64()), (Some("pipe"), Some(4.0)));
    }
}
