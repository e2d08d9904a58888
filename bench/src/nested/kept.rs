//! The figures of L2 that the repository keeps (`bench/nested.jsonl`), and the tables of `docs/` that are generated from them.

use std::path::Path;

use anyhow::Result;

use super::figure::Figure;
use super::l0::L0;
use super::l1::L1;
use super::setup::Setup;
use super::{operations, table};
use crate::json_lines;
use crate::store::{self, File};

/// The file of the figures.
const FIGURES: &str = "bench/nested.jsonl";
/// The page with the costs of each setup.
const COSTS: &str = "docs/nested-measurements.md";
/// The page with every exit of every operation, and the one of those under FEAT_NV alone, which are many.
const EXITS: &str = "docs/nested-exits.md";
const EXITS_NV: &str = "docs/nested-exits-nv.md";

/// The command that writes them.
const COMMAND: &str = "stile bench --nested --update";

/// The CPU model of the pages.
const MODEL: &str = "max";

/// Replaces older figures of the same operation and setup, and regenerates the tables.
///
/// # Errors
/// A file can't be read or written, or is not as expected.
pub fn update(repository: &Path, new: Vec<Figure>) -> Result<()> {
    let mut figures = store::read(repository, FIGURES)?;
    store::replace(&mut figures, new, Figure::is_of_same);
    figures.sort_by_key(place);
    let pages = pages(repository, &figures)?;
    store::write(repository, [(FIGURES, json_lines::write(&figures)?)].into_iter().chain(pages))
}

/// The pages with the figures' tables.
fn pages(repository: &Path, figures: &[Figure]) -> Result<[File; 3]> {
    let figures: Vec<_> = figures.iter().filter(|figure| figure.cpu == MODEL).cloned().collect();
    let (under_hosts, others): (Vec<_>, Vec<_>) = Setup::all().partition(|setup| setup.l1 == L1::Kvm);
    let costs = [
        ("costs".to_owned(), table::costs_page(&figures, &under_hosts, |setup| setup.l0.title().to_owned())),
        ("costs with other hypervisors".to_owned(), table::costs_page(&figures, &others, |setup| setup.l1.title().to_owned())),
    ];
    let page = |name, is_of: fn(Setup) -> bool| {
        let setups = Setup::all().filter(|&setup| is_of(setup));
        store::page(repository, name, COMMAND, setups.map(|setup| (exits_table(setup), table::exits_page(&figures, setup))))
    };
    Ok([
        store::page(repository, COSTS, COMMAND, costs)?,
        page(EXITS, |setup| setup.l0 != L0::Nv)?,
        page(EXITS_NV, |setup| setup.l0 == L0::Nv)?,
    ])
}

/// The name of the table of a setup's exits.
fn exits_table(setup: Setup) -> String {
    format!("exits of {}", setup.name())
}

/// Position of a figure in the file: the model of the page first, then by setup and operation.
fn place(figure: &Figure) -> impl Ord + use<> {
    (figure.cpu != MODEL, figure.cpu.clone(), Setup::all().position(|setup| setup.has(figure)), operations::place(&figure.operation))
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;
    use crate::store::tests::assert_current;
    use stile::cargo;

    #[test]
    fn the_pages_show_the_kept_figures() {
        let repository = cargo::repository();
        let figures: Vec<Figure> = store::read(&repository, FIGURES).unwrap();
        assert!(!figures.is_empty());
        assert_current(&repository, COMMAND, pages(&repository, &figures).unwrap());
    }

    #[test]
    fn new_figures_replace_older_ones_and_others_stay() {
        let costs = ["costs", "costs with other hypervisors"].map(str::to_owned).to_vec();
        let (nv, exits): (Vec<_>, Vec<_>) = Setup::all().partition(|setup| setup.l0 == L0::Nv);
        let [nv, exits] = [nv, exits].map(|setups| setups.into_iter().map(exits_table).collect());
        let folder = store::tests::repository(COMMAND, &[(COSTS, costs), (EXITS, exits), (EXITS_NV, nv)]);
        update(folder.path(), vec![figure(L0::Kvm, "timer", &[], &[]), figure(L0::Nv2, "timer", &[("IRQ", 64)], &[])]).unwrap();
        update(folder.path(), vec![figure(L0::Nv2, "timer", &[("IRQ", 128)], &[])]).unwrap();
        let kept: Vec<Figure> = store::read(folder.path(), FIGURES).unwrap();
        assert_eq!(kept.iter().map(|figure| &figure.host[..]).collect::<Vec<_>>(), ["stile-nv2", "kvm"]);
        let page = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let (costs, exits) = (page(COSTS), page(EXITS));
        assert!(costs.contains("| timer |") && !costs.contains("old"), "{costs}");
        assert!(exits.contains("| L2: IRQ | 2 |\n") && !exits.contains("old"), "{exits}");
    }
}
