//! `stile bench --ablate`: the gain of each technique of the exit path, measured with that technique disabled.

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use stile_blob::{Ablation, Techniques};

use super::host::{Figure, Host, Request};
use super::number::{number, ratio};
use super::record::Record;
use stile::config::ablation;

/// Name of the base: the second vectors, which all ablations use, with nothing ablated.
pub const NOTHING: &str = "nothing";

/// The name of the last one, with everything ablated.
pub const ALL: &str = "all";

/// All ablations in the order of tables: names, and the switches that they set.
fn ablations() -> Vec<(&'static str, Ablation)> {
    let mut all = Ablation::default();
    let mut ablations = vec![(NOTHING, all)];
    for name in ablation::names() {
        let mut only = Ablation::default();
        ablation::switch_on(&mut only, name);
        ablation::switch_on(&mut all, name);
        ablations.push((name, only));
    }
    ablations.push((ALL, all));
    ablations
}

/// Position of an ablation in that order.
pub fn position(name: &str) -> Option<usize> {
    ablations().iter().position(|(known, _)| *known == name)
}

/// Measures Stile unchanged, and with each ablation.
///
/// # Errors
/// Something can't be built or run.
pub fn measure(request: &Request<'_>) -> Result<Vec<Record>> {
    let mut records = run(request, None, None)?;
    for (name, ablate) in ablations() {
        records.extend(run(request, Some(name), Some(ablate))?);
    }
    Ok(records)
}

fn run(request: &Request<'_>, name: Option<&str>, ablate: Option<Ablation>) -> Result<Vec<Record>> {
    let what = name.map_or(String::new(), |name| format!(", {name} ablated"));
    let progress = |text: String| (request.progress)(format!("{text}{what}"));
    let request = Request { techniques: Techniques { ablate, ..request.techniques }, progress: &progress, ..*request };
    let figures = Host::Stile.measure(&request).with_context(|| format!("measuring under Stile{what}"))?;
    let record = |figure| Record {
        host: Host::Stile.name().to_owned(),
        arch: request.platform.arch,
        cpu: request.cpu.to_owned(),
        level: 1,
        ablation: name.map(str::to_owned),
        figure,
    };
    Ok(figures.into_iter().map(record).collect())
}

/// Cost of each ablation, for one operation.
#[derive(Debug, PartialEq)]
pub struct Row<'r> {
    /// The operation.
    pub operation: &'r str,
    /// Instructions without any ablation.
    pub ordinary: f64,
    /// Instructions of the second vectors, which the differences exclude.
    pub vectors: f64,
    /// Instructions that each ablation adds, by its name.
    pub more: Vec<(&'r str, f64)>,
}

impl Row<'_> {
    /// Cost of the operation with everything ablated, and the number of runs.
    pub fn without_any(&self) -> Option<(f64, f64)> {
        let (_, more) = self.more.iter().find(|(name, _)| *name == ALL)?;
        Some((self.ordinary + more, (self.ordinary + more) / self.ordinary))
    }
}

/// Rows of the operations that were measured with every ablation.
pub fn rows(records: &[Record]) -> Vec<Row<'_>> {
    let of = |figure: &Figure, name: Option<&str>| {
        let found = |record: &&Record| record.figure.operation == figure.operation && record.ablation.as_deref() == name;
        records.iter().find(found).map(|record| record.figure.instructions)
    };
    let row = |record: &'_ Record| {
        let figure = &record.figure;
        let base = of(figure, Some(NOTHING))?;
        let mut more = Vec::new();
        for (name, _) in ablations().into_iter().skip(1) {
            more.push((name, of(figure, Some(name))? - base));
        }
        Some((figure.instructions, base - figure.instructions, more))
    };
    let ordinary = records.iter().filter(|record| record.ablation.is_none());
    ordinary
        .filter_map(|record| {
            let (ordinary, vectors, more) = row(record)?;
            Some(Row { operation: &record.figure.operation, ordinary, vectors, more })
        })
        .collect()
}

/// The rows in words, under a heading.
pub fn cells(records: &[Record]) -> Vec<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let names = ablations().into_iter().skip(1).map(|(name, _)| name.to_owned());
    let heading = words(&["operation", Host::Stile.title()]).into_iter().chain(names).chain(words(&["total", "", "vectors"])).collect();
    let row = |row: Row<'_>| {
        let more = |more: f64| format!("+{}", number(more));
        let (total, times) = row.without_any().unwrap_or_default();
        let mut cells = vec![row.operation.to_owned(), number(row.ordinary)];
        cells.extend(row.more.iter().map(|(_, instructions)| more(*instructions)));
        cells.extend([number(total), ratio(times, 1.0), more(row.vectors)]);
        cells
    };
    [heading].into_iter().chain(rows(records).into_iter().map(row)).collect()
}

/// A table for the terminal.
pub fn table(cpu: &str, records: &[Record]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut cells = cells(records).into_iter();
    table.set_header(cells.next().unwrap_or_default());
    table.add_rows(cells);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "Instructions per operation on -cpu {cpu}, and how many more they are if a technique is done without. \"vectors\" is what the way to\n\
         do so costs itself; no other figure has it in it. Instructions are not cycles: a system register's costs more than another.\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use stile::config::Arch;

    fn record(ablation: Option<&str>, operation: &str, instructions: f64) -> Record {
        let figure = Figure {
            operation: operation.to_owned(),
            instructions,
            exits: Some(1.0),
            reasons: Default::default(),
            outside: None,
            vmx: None,
            iterations: 64,
        };
        Record {
            host: "stile".to_owned(),
            arch: Arch::Aarch64,
            cpu: "max".to_owned(),
            level: 1,
            ablation: ablation.map(str::to_owned),
            figure,
        }
    }

    #[test]
    fn differences_are_to_the_vectors_with_nothing_ablated() {
        let mut records = vec![record(None, "hyp_call", 35.0), record(None, "eoi", 2.0)];
        for (index, (name, _)) in ablations().into_iter().enumerate() {
            records.push(record(Some(name), "hyp_call", 65.0 + 10.0 * index as f64));
        }
        let rows = rows(&records);
        assert_eq!(rows.len(), 1, "what was not ablated has no row");
        assert_eq!((rows[0].ordinary, rows[0].vectors), (35.0, 30.0));
        assert_eq!(rows[0].more.first(), Some(&("state", 10.0)));
        assert_eq!(rows[0].more.last(), Some(&("all", 60.0)));
        assert_eq!(rows[0].without_any(), Some((95.0, 95.0 / 35.0)));
        let table = table("max", &records);
        let last: Vec<_> = table.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["hyp_call", "35", "+10", "+20", "+30", "+40", "+50", "+60", "95", "2.7x", "+30"]);
    }
}
