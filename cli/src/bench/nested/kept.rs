//! The figures of L2 that the repository keeps (`bench/nested.jsonl`), and the tables of `docs/nested.md` that are made of them.

use std::path::Path;

use anyhow::{Context, Result};

use super::figure::{self, Figure};
use super::l1::L1;
use super::setup::Setup;
use super::{operations, table};
use crate::bench::page::fill;

/// The files, from the repository's folder.
const FIGURES: &str = "bench/nested.jsonl";
const PAGE: &str = "docs/nested.md";

/// What writes them.
const COMMAND: &str = "stile bench --nested --update";

/// The CPU model of the page.
const MODEL: &str = "max";

/// Puts new figures into the place of older ones of the same thing, and makes the tables anew.
///
/// # Errors
/// A file can't be read or written, or is not as expected.
pub fn update(repository: &Path, new: Vec<Figure>) -> Result<()> {
    let mut figures = read(repository)?;
    figures.retain(|old| !new.iter().any(|new| new.is_of_same(old)));
    figures.extend(new);
    figures.sort_by_key(place);
    let page = made(repository, &figures)?;
    for (path, text) in [(FIGURES, figure::write(&figures)?), (PAGE, page)] {
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

/// The page with the figures' tables.
fn made(repository: &Path, figures: &[Figure]) -> Result<String> {
    let path = repository.join(PAGE);
    let mut page = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let figures: Vec<_> = figures.iter().filter(|figure| figure.cpu == MODEL).cloned().collect();
    let (under_hosts, others): (Vec<_>, Vec<_>) = Setup::all().partition(|setup| setup.l1 == L1::Kvm);
    let costs = [
        ("costs".to_owned(), table::costs_page(&figures, &under_hosts, |setup| setup.l0.title().to_owned())),
        ("costs with other hypervisors".to_owned(), table::costs_page(&figures, &others, |setup| setup.l1.title().to_owned())),
    ];
    let exits = Setup::all().map(|setup| (format!("exits of {}", setup.name()), table::exits_page(&figures, setup)));
    for (name, text) in costs.into_iter().chain(exits) {
        page = fill(&page, &name, COMMAND, &text).with_context(|| format!("reading {PAGE}"))?;
    }
    Ok(page)
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
    use crate::cargo;

    #[test]
    fn the_page_is_made_of_the_kept_figures() {
        let repository = cargo::repository();
        let figures = read(&repository).unwrap();
        assert!(!figures.is_empty());
        let page = std::fs::read_to_string(repository.join(PAGE)).unwrap();
        assert!(page == made(&repository, &figures).unwrap(), "{PAGE} does not show the figures of {FIGURES}: run `{COMMAND}`");
    }

    #[test]
    fn new_figures_replace_older_ones_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bench", "docs"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let costs = ["costs", "costs with other hypervisors"].map(str::to_owned);
        let names = costs.into_iter().chain(Setup::all().map(|setup| format!("exits of {}", setup.name())));
        let marks = names.map(|name| format!("<!-- {name}: written by `{COMMAND}` -->\nold\n<!-- end of {name} -->\n"));
        std::fs::write(folder.path().join(PAGE), marks.collect::<String>()).unwrap();
        update(folder.path(), vec![figure(L0::Kvm, "timer", &[], &[]), figure(L0::Nv2, "timer", &[("IRQ", 64)], &[])]).unwrap();
        update(folder.path(), vec![figure(L0::Nv2, "timer", &[("IRQ", 128)], &[])]).unwrap();
        let kept = read(folder.path()).unwrap();
        assert_eq!(kept.iter().map(|figure| &figure.host[..]).collect::<Vec<_>>(), ["stile-nv2", "kvm"]);
        let page = std::fs::read_to_string(folder.path().join(PAGE)).unwrap();
        assert!(page.contains("| L2: IRQ | 2 |\n") && !page.contains("old"), "{page}");
    }
}
