//! The table of events outside of the guest, by operation: costs on hardware that a count of instructions does not show.

use comfy_table::{CellAlignment, Table, presets};

use super::host::{Figure, Host};
use super::number::number;
use super::operation::Operation;

/// Returns a table with a row for each operation and host; `None` if nothing was counted.
pub fn table(operations: &[Operation], hosts: &[(Host, Vec<Figure>)]) -> Option<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["operation", "host", "exits", "MRS", "MSR", "barriers", "TLB, caches", "loads", "stores", "instructions"]);
    for operation in operations {
        let mut name = operation.name;
        for (host, figures) in hosts {
            let Some(figure) = figures.iter().find(|figure| figure.operation == operation.name) else { continue };
            let Some(outside) = &figure.outside else { continue };
            let mut row = vec![std::mem::take(&mut name).to_owned(), host.name().to_owned(), figure.exits.map_or_else(String::new, number)];
            let counts = [
                outside.sysreg_reads,
                outside.sysreg_writes,
                outside.barriers,
                outside.tlb_ops,
                outside.loads,
                outside.stores,
                outside.instructions,
            ];
            row.extend(counts.map(number));
            table.add_row(row);
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    (!table.is_empty()).then(|| format!("Exits, and what runs outside of the guest, per operation.\n{table}"))
}

#[cfg(test)]
mod tests {
    use super::super::host::Outside;
    use super::super::operation::{AARCH64, choose};
    use super::*;

    #[test]
    fn each_host_has_a_row() {
        let operations = choose(&AARCH64, &["hyp_call".to_owned(), "eoi".to_owned()]).unwrap();
        let outside =
            Outside { instructions: 33.0, sysreg_reads: 3.0, sysreg_writes: 0.0, barriers: 0.0, tlb_ops: 0.0, loads: 8.0, stores: 5.0 };
        let figure = |outside| Figure {
            operation: "hyp_call".to_owned(),
            instructions: 35.0,
            exits: Some(1.0),
            reasons: Default::default(),
            outside,
            vmx: None,
            iterations: 64,
        };
        let hosts = [(Host::Stile, vec![figure(Some(outside))]), (Host::Native, vec![figure(Some(outside))])];
        let table = table(&operations, &hosts).unwrap();
        let rows: Vec<Vec<&str>> = table.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["hyp_call", "stile", "1", "3", "0", "0", "0", "8", "5", "33"]);
        assert_eq!(rows[1][0], "native");
        assert_eq!(rows.len(), 2);
        assert_eq!(super::table(&operations, &[(Host::Stile, vec![figure(None)])]), None);
    }
}
