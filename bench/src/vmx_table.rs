//! Table of operations' accesses to VMCS fields and MSRs on an emulated PC.

use comfy_table::{CellAlignment, Table, presets};

use super::host::{Figure, Host};
use super::number::number;
use super::operation::Operation;

/// Returns a row for each operation and host; `None` if nothing was counted.
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
    use super::super::vmx::Vmx;
    use super::*;

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
