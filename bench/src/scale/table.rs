//! The figures as tables: for the terminal, and for the page.

use std::collections::BTreeSet;

use comfy_table::{CellAlignment, Table, presets};

use super::figure::Figure;
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

/// The terminal's table: a row for each operation and number of CPUs.
pub fn text(figures: &[Figure]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let heading = ["operation", "CPUs", "instructions"].into_iter().chain(COUNTS.map(|(name, _)| name));
    table.set_header(heading);
    for figure in figures {
        let counts = COUNTS.map(|(_, count)| number(count(figure)));
        table.add_row([figure.operation.clone(), figure.cpus.to_string(), number(figure.instructions)].into_iter().chain(counts));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// The page's tables: instructions over the number of CPUs; and the counts of sharing on the largest machine.
pub fn page(figures: &[Figure]) -> String {
    let cpus: BTreeSet<u32> = figures.iter().map(|figure| figure.cpus).collect();
    let most = cpus.last().copied().unwrap_or(0);
    let mut names: Vec<&str> = figures.iter().map(|figure| &figure.operation[..]).collect();
    names.dedup();
    let find = |name: &str, cpus: u32| figures.iter().find(|figure| figure.operation == name && figure.cpus == cpus);

    let heading = ["instructions at EL2, by CPUs".to_owned()].into_iter().chain(cpus.iter().map(u32::to_string));
    let mut instructions = vec![heading.chain([format!("{most} : 2")]).collect::<Vec<_>>()];
    let mut counts = vec![[format!("on {most} CPUs")].into_iter().chain(COUNTS.map(|(name, _)| name.to_owned())).collect::<Vec<_>>()];
    for name in names {
        let of = |cpus: &u32| find(name, *cpus).map_or(String::new(), |figure| short(figure.instructions));
        let ratio =
            find(name, most).zip(find(name, 2)).map_or(String::new(), |(most, two)| format!("{:.2}", most.instructions / two.instructions));
        instructions.push([name.to_owned()].into_iter().chain(cpus.iter().map(of)).chain([ratio]).collect());
        if let Some(figure) = find(name, most) {
            counts.push([name.to_owned()].into_iter().chain(COUNTS.map(|(_, count)| number(count(figure)))).collect());
        }
    }
    markdown(&instructions) + "\n" + &markdown(&counts)
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;

    #[test]
    fn the_pages_tables_have_a_row_for_each_operation() {
        let figures =
            [figure(2, "ipi", 200.0), figure(64, "ipi", 250.0), figure(1, "vcpu_switch", 700.0), figure(64, "vcpu_switch", 710.0)];
        let page = page(&figures);
        assert!(page.contains("| instructions at EL2, by CPUs | 1 | 2 | 64 | 64 : 2 |\n"), "{page}");
        assert!(page.contains("| ipi |  | 200 | 250 | 1.25 |\n"), "{page}");
        assert!(page.contains("| vcpu_switch | 700 |  | 710 |  |\n"), "{page}");
        assert!(page.contains("| on 64 CPUs | atomic writes | shared | failed | spins |\n"), "{page}");
        assert!(page.contains("| ipi | 3 | 1 | 0 | 0.5 |\n"), "{page}");
    }

    #[test]
    fn the_terminals_table_has_a_row_for_each_figure() {
        let text = text(&[figure(2, "ipi", 200.0), figure(64, "ipi", 250.5)]);
        let rows: Vec<Vec<_>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows, [["ipi", "2", "200", "3", "1", "0", "0.5"], ["ipi", "64", "250.5", "3", "1", "0", "0.5"]]);
    }
}
