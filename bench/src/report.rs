//! Comparison of all hosts: as tables of text, and as records for JSON.

use comfy_table::{CellAlignment, Table, presets};

use super::crossings;
use super::host::{Figure, Host};
use super::number::{number, ratio};
use super::operation::Operation;
use super::platform::Platform;
use super::record::Record;
use super::vmx_table;

/// All measurements.
#[derive(Debug)]
pub struct Results<'a> {
    platform: &'static Platform,
    cpu: &'a str,
    operations: &'a [Operation],
    hosts: Vec<(Host, Vec<Figure>)>,
}

impl<'a> Results<'a> {
    /// Returns a report without measurements.
    pub fn new(platform: &'static Platform, cpu: &'a str, operations: &'a [Operation]) -> Self {
        Self { platform, cpu, operations, hosts: Vec::new() }
    }

    /// Adds the figures of a host.
    pub fn add(&mut self, host: Host, figures: Vec<Figure>) {
        self.hosts.push((host, figures));
    }

    /// Renders a table with a row for each operation: the first host's figures and exits, then the others' with their
    /// ratio to the first host's.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let mut heading = vec!["operation".to_owned()];
        for (index, (host, _)) in self.hosts.iter().enumerate() {
            heading.push(host.name().to_owned());
            heading.push(if index == 0 { "exits".to_owned() } else { String::new() });
        }
        table.set_header(heading);
        for operation in self.operations {
            let mut row = vec![operation.name.to_owned()];
            let base = self.hosts.first().and_then(|(_, figures)| find(figures, operation));
            for (index, (_, figures)) in self.hosts.iter().enumerate() {
                let figure = find(figures, operation);
                row.push(figure.map_or("-".into(), |figure| number(figure.instructions)));
                row.push(match (index, figure, base) {
                    (0, Some(figure), _) => figure.exits.map_or_else(String::new, number),
                    (_, Some(figure), Some(base)) => ratio(figure.instructions, base.instructions),
                    _ => String::new(),
                });
            }
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("Instructions per operation on -cpu {}, without the loop's. Instructions are not cycles.\n{table}", self.cpu)
    }

    /// Renders a table of exits by reason; `None` if no host has a ledger.
    pub fn reasons(&self) -> Option<String> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["operation", "host", "exits", "reason"]);
        for operation in self.operations {
            for (host, figures) in &self.hosts {
                let Some(figure) = find(figures, operation) else { continue };
                let mut row = vec![operation.name.to_owned(), host.name().to_owned()];
                for (reason, exits) in &figure.reasons {
                    row.resize(2, String::new());
                    row.extend([format!("{exits:.2}"), reason.clone()]);
                    table.add_row(std::mem::take(&mut row));
                }
            }
        }
        (!table.is_empty()).then(|| format!("Exits by reason, per operation.\n{table}"))
    }

    /// Renders the table of events outside of the guest; `None` if they were not counted.
    pub fn crossings(&self) -> Option<String> {
        crossings::table(self.operations, &self.hosts)
    }

    /// Renders the table of privileged operations of a PC's hypervisor; `None` if they were not counted.
    pub fn vmx(&self) -> Option<String> {
        vmx_table::table(self.operations, &self.hosts)
    }

    /// Returns a record of each figure, with its host, architecture and CPU model.
    pub fn records(&self) -> Vec<Record> {
        let record = |host: &Host, figure: &Figure| Record {
            host: host.name().to_owned(),
            arch: self.platform.arch,
            cpu: self.cpu.to_owned(),
            level: 1,
            ablation: None,
            figure: figure.clone(),
        };
        self.hosts.iter().flat_map(|(host, figures)| figures.iter().map(move |figure| record(host, figure))).collect()
    }
}

fn find<'f>(figures: &'f [Figure], operation: &Operation) -> Option<&'f Figure> {
    figures.iter().find(|figure| figure.operation == operation.name)
}

#[cfg(test)]
mod tests {
    use super::super::operation::{AARCH64, choose};
    use super::super::platform;
    use super::*;
    use stile::config::Arch;

    fn figure(operation: &str, instructions: f64, exits: Option<f64>) -> Figure {
        Figure {
            operation: operation.to_owned(),
            instructions,
            exits,
            reasons: Default::default(),
            outside: None,
            vmx: None,
            iterations: 4096,
        }
    }

    #[test]
    fn a_row_shows_every_host() {
        let operations = choose(&AARCH64, &["hyp_call".to_owned(), "eoi".to_owned()]).unwrap();
        let mut results = Results::new(platform::of(Arch::Aarch64), "max", &operations);
        results.add(Host::Stile, vec![figure("hyp_call", 35.0, Some(1.0)), figure("eoi", 2.0, Some(0.0))]);
        results.add(Host::Native, vec![figure("hyp_call", 70.0, None)]);
        let table = results.table();
        let row = |name: &str| table.lines().find(|line| line.contains(name)).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row("hyp_call"), ["hyp_call", "35", "1", "70", "2.0x"]);
        assert_eq!(row("eoi"), ["eoi", "2", "0", "-"]);
        let records = results.records();
        assert_eq!((&records[0].host[..], records[0].figure.instructions), ("stile", 35.0));
        assert_eq!((&records[2].host[..], records[2].figure.exits), ("native", None));
    }
}
