//! The figures as tables: for the terminal, and for the page.

use std::collections::BTreeSet;

use comfy_table::{CellAlignment, Table, presets};

use super::figure::Figure;
use crate::host::{self, STILE};
use crate::number::{number, short};
use crate::page::markdown;

/// A column of a table of counts: its heading, and the count.
type Count = (&'static str, fn(&Figure) -> f64);

/// The counts of sharing.
const COUNTS: [Count; 4] = [
    ("atomic writes", |figure| figure.atomics),
    ("shared", |figure| figure.shared),
    ("failed", |figure| figure.failed),
    ("spins", |figure| figure.spins),
];

/// The terminal's table: a row for each operation, host and machine.
pub fn text(figures: &[Figure]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let heading = ["operation", "host", "CPUs", "VMs", "instructions"].into_iter().chain(COUNTS.map(|(name, _)| name));
    table.set_header(heading);
    for figure in figures {
        let counts = COUNTS.map(|(_, count)| number(count(figure)));
        let vms = figure.vms.map_or("on each".to_owned(), |vms| vms.to_string());
        let host = figure.host.as_deref().unwrap_or(STILE).to_owned();
        table
            .add_row([figure.operation.clone(), host, figure.cpus.to_string(), vms, number(figure.instructions)].into_iter().chain(counts));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// The page's tables: instructions over the number of CPUs; the counts of sharing on the largest machine; instructions
/// over the number of VMs, and those of peers over the number of CPUs, if these were measured.
pub fn page(figures: &[Figure]) -> String {
    let (of_peers, figures): (Vec<&Figure>, Vec<&Figure>) = figures.iter().partition(|figure| figure.host.is_some());
    let (by_vms, by_cpus): (Vec<&Figure>, Vec<&Figure>) = figures.into_iter().partition(|figure| figure.vms.is_some());
    let most = by_cpus.iter().map(|figure| figure.cpus).max().unwrap_or(0);
    let heading = [format!("on {most} CPUs")].into_iter().chain(COUNTS.map(|(name, _)| name.to_owned())).collect::<Vec<_>>();
    let row = |figure: &&&Figure| figure.cpus == most;
    let counts = by_cpus
        .iter()
        .filter(row)
        .map(|figure| [figure.operation.clone()].into_iter().chain(COUNTS.map(|(_, count)| number(count(figure)))).collect::<Vec<_>>());
    let mut tables = vec![
        instructions("Stile", "CPUs", &by_cpus, |figure| figure.cpus),
        markdown(&[heading].into_iter().chain(counts).collect::<Vec<_>>()),
    ];
    if !by_vms.is_empty() {
        tables.push(instructions("Stile", "VMs", &by_vms, |figure| figure.vms.unwrap_or(0)));
    }
    for of_peer in of_peers.chunk_by(|one, other| one.host == other.host) {
        let name = of_peer[0].host.as_deref().unwrap_or_default();
        tables.push(instructions(host::by_name(name).map_or(name, |host| host.title()), "CPUs", of_peer, |figure| figure.cpus));
    }
    tables.join("\n")
}

/// The table of a host's instructions over a number, with the ratio of the largest one to 2.
fn instructions(host: &str, of: &str, figures: &[&Figure], number: impl Fn(&Figure) -> u32) -> String {
    let numbers: BTreeSet<u32> = figures.iter().map(|figure| number(figure)).collect();
    let most = numbers.last().copied().unwrap_or(0);
    let mut names: Vec<&str> = figures.iter().map(|figure| &figure.operation[..]).collect();
    names.dedup();
    let find = |name: &str, wanted: u32| figures.iter().find(|figure| figure.operation == name && number(figure) == wanted);
    let heading = [format!("instructions of {host}, by {of}")].into_iter().chain(numbers.iter().map(u32::to_string));
    let mut rows = vec![heading.chain([format!("{most} : 2")]).collect::<Vec<_>>()];
    for name in names {
        let of = |number: &u32| find(name, *number).map_or(String::new(), |figure| short(figure.instructions));
        let ratio = find(name, most).zip(find(name, 2)).map(|(most, two)| format!("{:.2}", most.instructions / two.instructions));
        rows.push([name.to_owned()].into_iter().chain(numbers.iter().map(of)).chain([ratio.unwrap_or_default()]).collect());
    }
    markdown(&rows)
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;

    #[test]
    fn the_pages_tables_have_a_row_for_each_operation() {
        let figures =
            [figure(2, "ipi", 200.0), figure(64, "ipi", 250.0), figure(1, "vcpu_switch", 700.0), figure(64, "vcpu_switch", 710.0)];
        let of_vms = [2, 64].map(|vms| Figure { vms: Some(vms), ..figure(3, "ipi", 200.0 + f64::from(vms)) });
        let of_kvm = [2, 8].map(|cpus| Figure { host: Some("kvm-vhe".to_owned()), ..figure(cpus, "ipi", 5000.0) });
        let page = page(&[&figures[..], &of_vms, &of_kvm].concat());
        assert!(page.contains("| instructions of KVM VHE, by CPUs | 2 | 8 | 8 : 2 |\n"), "{page}");
        assert!(page.contains("| ipi | 5,000 | 5,000 | 1.00 |\n"), "{page}");
        assert!(page.contains("| instructions of Stile, by VMs | 2 | 64 | 64 : 2 |\n"), "{page}");
        assert!(page.contains("| ipi | 202 | 264 | 1.31 |\n"), "{page}");
        assert!(page.contains("| instructions of Stile, by CPUs | 1 | 2 | 64 | 64 : 2 |\n"), "{page}");
        assert!(page.contains("| ipi |  | 200 | 250 | 1.25 |\n"), "{page}");
        assert!(page.contains("| vcpu_switch | 700 |  | 710 |  |\n"), "{page}");
        assert!(page.contains("| on 64 CPUs | atomic writes | shared | failed | spins |\n"), "{page}");
        assert!(page.contains("| ipi | 3 | 1 | 0 | 0.5 |\n"), "{page}");
    }

    #[test]
    fn the_terminals_table_has_a_row_for_each_figure() {
        let text = text(&[figure(2, "ipi", 200.0), Figure { vms: Some(8), ..figure(64, "ipi", 250.5) }]);
        let rows: Vec<Vec<_>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows,
            [
                vec!["ipi", "stile", "2", "on", "each", "200", "3", "1", "0", "0.5"],
                vec!["ipi", "stile", "64", "8", "250.5", "3", "1", "0", "0.5"]
            ]
        );
    }
}
