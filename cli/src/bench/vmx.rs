//! What the emulated PC counts of a guest's operations (`emulator/bochs/instrument.cc`): what hardware charges for, and instructions don't
//! show.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use super::host::{Figure, Host};
use super::operation::Operation;
use super::report::number;

/// What happened between two marks of the guest's, on all CPUs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Exits by basic reason.
    exits: BTreeMap<u16, u64>,
    vmcs_reads: u64,
    vmcs_writes: u64,
    msr_writes: u64,
}

/// The same of one operation, but for its exits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Vmx {
    /// VMREAD outside of guests.
    pub vmcs_reads: f64,
    /// VMWRITE outside of guests.
    pub vmcs_writes: f64,
    /// WRMSR outside of guests.
    pub msr_writes: f64,
}

/// Reads the emulator's lines: a section each.
///
/// # Errors
/// A line is none.
pub fn parse(text: &str) -> Result<Vec<Section>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("the emulator counted {line}"))).collect()
}

impl Section {
    /// All exits.
    pub fn exits(&self) -> u64 {
        self.exits.values().sum()
    }

    /// How many more exits there are than in another one.
    pub fn more_exits(&self, before: &Self) -> i64 {
        self.exits() as i64 - before.exits() as i64
    }

    /// What each of so many operations makes run, that this has more than another one.
    pub fn of_each(&self, before: &Self, operations: u64) -> Vmx {
        let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / operations as f64;
        Vmx {
            vmcs_reads: each(self.vmcs_reads, before.vmcs_reads),
            vmcs_writes: each(self.vmcs_writes, before.vmcs_writes),
            msr_writes: each(self.msr_writes, before.msr_writes),
        }
    }
}

/// A row for each operation and host; none if nothing was counted.
pub fn table(operations: &[Operation], hosts: &[(Host, Vec<Figure>)]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["operation", "host", "exits", "VMREAD", "VMWRITE", "WRMSR"]);
    for operation in operations {
        let mut name = operation.name;
        for (host, figures) in hosts.iter().filter(|(host, _)| *host != Host::Native) {
            let Some(figure) = figures.iter().find(|figure| figure.operation == operation.name) else { continue };
            let Some(vmx) = &figure.vmx else { continue };
            let exits = figure.exits.map_or_else(String::new, number);
            let counts = [vmx.vmcs_reads, vmx.vmcs_writes, vmx.msr_writes].map(number);
            table.add_row([std::mem::take(&mut name).to_owned(), host.name().to_owned(), exits].into_iter().chain(counts));
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    (!table.is_empty()).then(|| format!("What the processor is asked for outside of guests, per operation.\n{table}"))
}

#[cfg(test)]
mod tests {
    use super::super::operation::{X86_64, choose};
    use super::*;

    const ONCE: &str = r#"{"exits":{"10":64,"1":2},"vmcs_reads":256,"vmcs_writes":66,"msr_writes":3}"#;
    const TWICE: &str = r#"{"exits":{"10":128,"1":2},"vmcs_reads":512,"vmcs_writes":130,"msr_writes":3}"#;

    #[test]
    fn what_is_at_the_edges_is_in_no_figure() {
        let [once, twice] = <[Section; 2]>::try_from(parse(&format!("{ONCE}\n{TWICE}\n")).unwrap()).unwrap();
        assert_eq!((once.exits(), twice.more_exits(&once)), (66, 64));
        assert_eq!(twice.of_each(&once, 64), Vmx { vmcs_reads: 4.0, vmcs_writes: 1.0, msr_writes: 0.0 });
        assert!(parse("{}\n").is_err() && parse("").unwrap().is_empty());
    }

    #[test]
    fn each_host_has_a_row() {
        let operations = choose(&X86_64, &["cpuid".to_owned(), "eoi".to_owned()]).unwrap();
        let vmx = Some(Vmx { vmcs_reads: 4.0, vmcs_writes: 1.0, msr_writes: 0.0 });
        let figure = |vmx| Figure {
            operation: "cpuid".to_owned(),
            instructions: 52.0,
            exits: Some(1.0),
            reasons: Default::default(),
            outside: None,
            vmx,
            iterations: 64,
        };
        let table = table(&operations, &[(Host::Stile, vec![figure(vmx)]), (Host::Native, vec![figure(vmx)])]).unwrap();
        let rows: Vec<Vec<&str>> = table.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows, [["cpuid", "stile", "1", "4", "1", "0"]]);
        assert_eq!(super::table(&operations, &[(Host::Stile, vec![figure(None)])]), None);
    }
}
