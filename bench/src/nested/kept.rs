//! The figures of L2 that the repository keeps (`bench/nested.jsonl`), and the tables of `docs/` that are generated from them.

use std::path::Path;

use anyhow::{Context, Result};

use super::figure::{self, Figure};
use super::l1::L1;
use super::setup::Setup;
use super::{operations, table};
use crate::page::fill;

/// The files, from the repository's folder.
const FIGURES: &str = "bench/nested.jsonl";
/// The page with the costs of each setup.
const COSTS: &str = "docs/nested-measurements.md";
/// The page with every exit of every operation.
const EXITS: &str = "docs/nested-exits.md";

/// The command that writes them.
const COMMAND: &str = "stile bench --nested --update";

/// The CPU model of the pages.
const MODEL: &str = "max";

/// Replaces older figures of the same operation and setup, and regenerates the tables.
///
/// # Errors
/// A file can't be read or written, or is not as expected.
pub fn update(repository: &Path, new: Vec<Figure>) -> Result<()> {
    let mut figures = read(repository)?;
    figures.retain(|old| !new.iter().any(|new| new.is_of_same(old)));
    figures.extend(new);
    figures.sort_by_key(place);
    let [costs, exits] = pages(repository, &figures)?;
    for (path, text) in [(FIGURES, figure::write(&figures)?), costs, exits] {
        let path = repository.join(path);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn read(repository: &Path) -> Result<Vec<Figure>> {
    let path = repository.join(FIGURES);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    figure::read(&text).with_context(|| format!("reading {}", path.display()))
}

/// The pages with the figures' tables: paths and contents.
fn pages(repository: &Path, figures: &[Figure]) -> Result<[(&'static str, String); 2]> {
    let figures: Vec<_> = figures.iter().filter(|figure| figure.cpu == MODEL).cloned().collect();
    let (under_hosts, others): (Vec<_>, Vec<_>) = Setup::all().partition(|setup| setup.l1 == L1::Kvm);
    let costs = [
        ("costs".to_owned(), table::costs_page(&figures, &under_hosts, |setup| setup.l0.title().to_owned())),
        ("costs with other hypervisors".to_owned(), table::costs_page(&figures, &others, |setup| setup.l1.title().to_owned())),
    ];
    let exits = Setup::all().map(|setup| (format!("exits of {}", setup.name()), table::exits_page(&figures, setup)));
    Ok([(COSTS, filled(repository, COSTS, costs)?), (EXITS, filled(repository, EXITS, exits)?)])
}

/// A page with each named table replaced.
fn filled(repository: &Path, page: &str, tables: impl IntoIterator<Item = (String, String)>) -> Result<String> {
    let path = repository.join(page);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    tables.into_iter().try_fold(text, |text, (name, table)| fill(&text, &name, COMMAND, &table)).with_context(|| format!("reading {page}"))
}

/// Where a figure stands in the file: the model of the page first, then by setup and operation.
fn place(figure: &Figure) -> impl Ord + use<> {
    (figure.cpu != MODEL, figure.cpu.clone(), Setup::all().position(|setup| setup.has(figure)), operations::place(&figure.operation))
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::super::l0::L0;
    use super::*;
    use stile::cargo;

    #[test]
    fn the_pages_show_the_kept_figures() {
        let repository = cargo::repository();
        let figures = read(&repository).unwrap();
        assert!(!figures.is_empty());
        for (page, expected) in pages(&repository, &figures).unwrap() {
            let text = std::fs::read_to_string(repository.join(page)).unwrap();
            assert!(text == expected, "{page} does not show the figures of {FIGURES}: run `{COMMAND}`");
        }
    }

    #[test]
    fn new_figures_replace_older_ones_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bench", "docs"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let mark = |name: String| format!("<!-- {name}: written by `{COMMAND}` -->\nold\n<!-- end of {name} -->\n");
        let costs = ["costs", "costs with other hypervisors"].map(|name| mark(name.to_owned()));
        std::fs::write(folder.path().join(COSTS), costs.concat()).unwrap();
        let exits = Setup::all().map(|setup| mark(format!("exits of {}", setup.name())));
        std::fs::write(folder.path().join(EXITS), exits.collect::<String>()).unwrap();
        update(folder.path(), vec![figure(L0::Kvm, "timer", &[], &[]), figure(L0::Nv2, "timer", &[("IRQ", 64)], &[])]).unwrap();
        update(folder.path(), vec![figure(L0::Nv2, "timer", &[("IRQ", 128)], &[])]).unwrap();
        let kept = read(folder.path()).unwrap();
        assert_eq!(kept.iter().map(|figure| &figure.host[..]).collect::<Vec<_>>(), ["stile-nv2", "kvm"]);
        let page = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let (costs, exits) = (page(COSTS), page(EXITS));
        assert!(costs.contains("| timer |") && !costs.contains("old"), "{costs}");
        assert!(exits.contains("| L2: IRQ | 2 |\n") && !exits.contains("old"), "{exits}");
    }
}
