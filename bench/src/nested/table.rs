//! Tables of the figures of all setups, for the terminal and for the pages of `docs/`.

use std::collections::BTreeSet;

use super::figure::Figure;
use super::operations;
use super::setup::Setup;
use crate::number::{number, short};
use crate::page::{self, aligned};

/// All tables, as text for the terminal.
pub fn terminal(figures: &[Figure], cpu: &str) -> String {
    let mut text = format!(
        "Instructions per operation of L2 on -cpu {cpu}, L1's included; L0's part of them; and exits to L0.\n\
         Instructions are not cycles.\n{}",
        aligned(&costs(figures, &Setup::all().collect::<Vec<_>>(), Setup::name))
    );
    for setup in Setup::all().filter(|setup| figures.iter().any(|figure| setup.has(figure))) {
        text += &format!("\n\nExits to L0, {}, per operation\n{}", setup.name(), aligned(&exits(figures, setup)));
    }
    text
}

/// The table of operations' costs in these setups, for a page.
pub fn costs_page(figures: &[Figure], setups: &[Setup], title: impl Fn(Setup) -> String) -> String {
    page::markdown(&costs(figures, setups, title))
}

/// The exits in a setup, for a page.
pub fn exits_page(figures: &[Figure], setup: Setup) -> String {
    page::markdown(&exits(figures, setup))
}

/// The operations that were measured in these setups, in the order of all tables.
fn operations(figures: &[Figure], setups: &[Setup]) -> Vec<&'static str> {
    let is_there = |name: &&'static str| figures.iter().any(|figure| figure.operation == *name && setups.iter().any(|it| it.has(figure)));
    operations::all().into_iter().map(|operation| operation.name).filter(is_there).collect()
}

fn find<'a>(figures: &'a [Figure], setup: Setup, operation: &str) -> Option<&'a Figure> {
    figures.iter().find(|figure| setup.has(figure) && figure.operation == operation)
}

/// A row for each operation. Three columns for each setup that has figures: instructions, those of L0, and exits.
fn costs(figures: &[Figure], setups: &[Setup], title: impl Fn(Setup) -> String) -> Vec<Vec<String>> {
    let there = || setups.iter().copied().filter(|setup| figures.iter().any(|figure| setup.has(figure)));
    let mut heading = vec!["operation of L2".to_owned()];
    heading.extend(there().flat_map(|setup| [title(setup), "in L0".to_owned(), "exits".to_owned()]));
    let row = |operation: &'static str| {
        let cells = |setup| match find(figures, setup, operation) {
            Some(figure) => [short(figure.instructions), short(figure.l0.instructions), number(figure.exits())],
            None => [const { String::new() }; 3],
        };
        [operation.to_owned()].into_iter().chain(there().flat_map(cells)).collect()
    };
    [heading].into_iter().chain(operations(figures, setups).into_iter().map(row)).collect()
}

/// A row for each reason, those of L2 first; a column for each operation.
fn exits(figures: &[Figure], setup: Setup) -> Vec<Vec<String>> {
    let operations = operations(figures, &[setup]);
    let mut rows = vec![vec!["exit".to_owned()]];
    rows[0].extend(operations.iter().map(|&name| name.to_owned()));
    for level in ["L2", "L1"] {
        let of = |figure: &Figure| if level == "L2" { figure.l2_exits.clone() } else { figure.l1_exits.clone() };
        let reasons: BTreeSet<String> =
            figures.iter().filter(|figure| setup.has(figure)).flat_map(|figure| of(figure).into_keys()).collect();
        for reason in reasons {
            let cell = |operation| find(figures, setup, operation).and_then(|figure| of(figure).get(&reason).copied());
            let cells = operations.iter().map(|operation| cell(operation).map_or(String::new(), number));
            rows.push([format!("{level}: {reason}")].into_iter().chain(cells).collect());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::{figure, figure_of};
    use super::super::l0::L0;
    use super::super::l1::L1;
    use super::*;

    #[test]
    fn each_trapped_register_has_a_row() {
        let xen = Setup { l1: L1::Xen, l0: L0::Nv2 };
        let figures = [
            figure(L0::Nv2, "hyp_call", &[("HVC", 64)], &[("ERET", 64), ("system register ICH_MISR_EL2 read", 64)]),
            figure(L0::Kvm, "hyp_call", &[("HVC", 64)], &[("ERET", 64), ("system register MDSCR_EL1 write", 192)]),
            figure(L0::Nv2, "eoi", &[], &[]),
            figure_of(xen, "hyp_call", &[("HVC", 64)], &[("ERET", 64)]),
        ];
        let [nv2, kvm] = [L0::Nv2, L0::Kvm].map(|l0| Setup { l1: L1::Kvm, l0 });
        let costs = |setups: &[Setup]| costs(&figures, setups, Setup::name);
        assert_eq!(costs(&[nv2, kvm])[1], ["hyp_call", "3,796", "1,000", "3", "3,796", "1,000", "5"]);
        assert_eq!(costs(&[nv2, kvm])[2], ["eoi", "3,796", "1,000", "0", "", "", ""]);
        assert_eq!(
            costs(&[xen]),
            [vec!["operation of L2", "xen under stile-nv2", "in L0", "exits"], vec!["hyp_call", "3,796", "1,000", "2"]]
        );
        let rows = exits(&figures, kvm);
        assert_eq!(rows[0], ["exit", "hyp_call"]);
        assert_eq!(rows[3], ["L1: MDSCR_EL1 write", "3"]);
        assert!(terminal(&figures, "max").contains("L1: ICH_MISR_EL2 read"));
        assert!(exits_page(&figures, nv2).contains("| L2: HVC | 1 |  |\n"));
    }
}
