//! The figures of all hosts beside each other: for the terminal, and for `docs/nested.md`.

use std::collections::BTreeSet;

use comfy_table::{CellAlignment, Table, presets};

use super::figure::Figure;
use super::l0::L0;
use crate::bench::operation::AARCH64 as OPERATIONS;
use crate::bench::page;
use crate::bench::report::{number, short};

/// Everything, for people.
pub fn terminal(figures: &[Figure], cpu: &str) -> String {
    let mut text = format!(
        "Instructions per operation of L2 under Debian's KVM on -cpu {cpu}, those of L1 included, and what of them and how many exits are L0's.\n\
         Instructions are not cycles.\n{}",
        aligned(&costs(figures))
    );
    for host in there(figures) {
        text += &format!("\n\nExits to L0 under {}, per operation\n{}", host.name(), aligned(&exits(figures, host)));
    }
    text
}

/// The table of costs, for a page.
pub fn costs_page(figures: &[Figure]) -> String {
    page::markdown(&costs(figures))
}

/// The exits under a host, for a page.
pub fn exits_page(figures: &[Figure], host: L0) -> String {
    page::markdown(&exits(figures, host))
}

fn aligned(rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let mut rows = rows.iter();
    if let Some(heading) = rows.next() {
        table.set_header(heading);
    }
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// The hosts that something was measured under.
fn there(figures: &[Figure]) -> impl Iterator<Item = L0> {
    L0::ALL.into_iter().filter(|host| figures.iter().any(|figure| figure.host == host.name()))
}

/// The operations that were measured, in the order of all tables.
fn operations(figures: &[Figure]) -> impl Iterator<Item = &'static str> {
    OPERATIONS.iter().map(|operation| operation.name).filter(|name| figures.iter().any(|figure| figure.operation == *name))
}

fn find<'a>(figures: &'a [Figure], host: L0, operation: &str) -> Option<&'a Figure> {
    figures.iter().find(|figure| figure.host == host.name() && figure.operation == operation)
}

/// A row for each operation; for each host, instructions, those of L0, and exits.
fn costs(figures: &[Figure]) -> Vec<Vec<String>> {
    let mut heading = vec!["operation of L2".to_owned()];
    heading.extend(there(figures).flat_map(|host| [host.title().to_owned(), "in L0".to_owned(), "exits".to_owned()]));
    let row = |operation: &'static str| {
        let cells = |host| match find(figures, host, operation) {
            Some(figure) => [short(figure.instructions), short(figure.l0.instructions), number(figure.exits())],
            None => [const { String::new() }; 3],
        };
        [operation.to_owned()].into_iter().chain(there(figures).flat_map(cells)).collect()
    };
    [heading].into_iter().chain(operations(figures).map(row)).collect()
}

/// A row for each reason: those of L2, and then those of L1; a column for each operation.
fn exits(figures: &[Figure], host: L0) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["exit".to_owned()]];
    rows[0].extend(operations(figures).map(str::to_owned));
    for level in ["L2", "L1"] {
        let of = |figure: &Figure| if level == "L2" { figure.l2_exits.clone() } else { figure.l1_exits.clone() };
        let all = figures.iter().filter(|figure| figure.host == host.name());
        let reasons: BTreeSet<String> = all.flat_map(|figure| of(figure).into_keys()).collect();
        for reason in reasons {
            let cell = |operation| find(figures, host, operation).and_then(|figure| of(figure).get(&reason).copied());
            let cells = operations(figures).map(|operation| cell(operation).map_or(String::new(), number));
            rows.push([format!("{level}: {reason}")].into_iter().chain(cells).collect());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;

    #[test]
    fn each_trapped_register_has_a_row() {
        let figures = [
            figure("stile-nv2", "hyp_call", &[("HVC", 64)], &[("ERET", 64), ("system register ICH_MISR_EL2 read", 64)]),
            figure("kvm", "hyp_call", &[("HVC", 64)], &[("ERET", 64), ("system register MDSCR_EL1 write", 192)]),
            figure("stile-nv2", "eoi", &[], &[]),
        ];
        assert_eq!(costs(&figures)[1], ["hyp_call", "3,796", "1,000", "3", "3,796", "1,000", "5"]);
        assert_eq!(costs(&figures)[2], ["eoi", "3,796", "1,000", "0", "", "", ""]);
        let rows = exits(&figures, L0::Kvm);
        assert_eq!(rows[0], ["exit", "hyp_call", "eoi"]);
        assert_eq!(rows[3], ["L1: MDSCR_EL1 write", "3", ""]);
        assert!(terminal(&figures, "max").contains("L1: ICH_MISR_EL2 read"));
        assert!(exits_page(&figures, L0::Nv2).contains("| L2: HVC | 1 |  |\n"));
    }
}
