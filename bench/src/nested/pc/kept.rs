//! The figures that the repository keeps (`bench/nested-vmx.jsonl`), and the tables of `docs/` that are generated from them.

use std::path::Path;

use anyhow::{Context, Result};

use super::boot::Boot;
use super::figure::{self, Figure};
use super::{operations, table};
use crate::page::{fill, markdown};
use crate::platform;
use stile::config::Arch;

/// The files, from the repository's folder.
const FIGURES: &str = "bench/nested-vmx.jsonl";
const BOOTS: &str = "bench/nested-vmx-boot.jsonl";
/// The page with the tables.
const PAGE: &str = "docs/nested-vmx-measurements.md";

/// The command that writes them.
const COMMAND: &str = "stile bench --arch x86_64 --nested --update";

/// Everything that is kept.
struct Kept {
    figures: Vec<Figure>,
    boots: Vec<Boot>,
}

/// Replaces older figures of the same operation and CPU, and regenerates the tables.
///
/// # Errors
/// A file can't be read or written, or is not as expected.
pub fn update(repository: &Path, new: Vec<Figure>, boot: Option<Boot>) -> Result<()> {
    let Kept { mut figures, mut boots } = read(repository)?;
    figures.retain(|old| !new.iter().any(|new| new.is_of_same(old)));
    figures.extend(new);
    figures.sort_by_key(|figure| (figure.cpu.clone(), operations::place(&figure.operation)));
    if let Some(boot) = boot {
        boots.retain(|old| old.cpu != boot.cpu);
        boots.push(boot);
    }
    let kept = Kept { figures, boots };
    let boots = kept.boots.iter().map(Boot::line).collect::<Result<String>>()?;
    for (path, text) in [(FIGURES, figure::write(&kept.figures)?), (BOOTS, boots), (PAGE, page(repository, &kept)?)] {
        let path = repository.join(path);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn read(repository: &Path) -> Result<Kept> {
    let text = |path| {
        let path = repository.join(path);
        if !path.exists() {
            return Ok(String::new());
        }
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let figures = figure::read(&text(FIGURES)?).with_context(|| format!("reading {FIGURES}"))?;
    let boots = text(BOOTS)?.lines().map(serde_json::from_str).collect::<Result<_, _>>().with_context(|| format!("reading {BOOTS}"))?;
    Ok(Kept { figures, boots })
}

/// The page with the tables of the default CPU model.
fn page(repository: &Path, kept: &Kept) -> Result<String> {
    let model = platform::of(Arch::X86_64).cpu();
    let figures: Vec<_> = kept.figures.iter().filter(|figure| figure.cpu == model).cloned().collect();
    let boot = kept.boots.iter().find(|boot| boot.cpu == model).map_or(String::new(), |boot| markdown(&boot.rows()));
    let path = repository.join(PAGE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let tables = [("costs", markdown(&table::costs(&figures))), ("exits", markdown(&table::exits(&figures))), ("boot of L1", boot)];
    tables.into_iter().try_fold(text, |text, (name, table)| fill(&text, name, COMMAND, &table)).with_context(|| format!("reading {PAGE}"))
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;
    use stile::cargo;

    #[test]
    fn the_page_shows_the_kept_figures() {
        let repository = cargo::repository();
        let kept = read(&repository).unwrap();
        assert!(!kept.figures.is_empty() && !kept.boots.is_empty());
        let text = std::fs::read_to_string(repository.join(PAGE)).unwrap();
        assert!(text == page(&repository, &kept).unwrap(), "{PAGE} does not show the kept figures: run `{COMMAND}`");
    }

    #[test]
    fn new_figures_replace_older_ones_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bench", "docs"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let mark = |name: &str| format!("<!-- {name}: written by `{COMMAND}` -->\nold\n<!-- end of {name} -->\n");
        std::fs::write(folder.path().join(PAGE), ["costs", "exits", "boot of L1"].map(mark).concat()).unwrap();
        let model = platform::of(Arch::X86_64).cpu();
        let of_model = |operation: &str, instructions| Figure { cpu: model.to_owned(), instructions, ..figure(operation) };
        let boot = Boot { cpu: model.to_owned(), boot_exits: [("HLT".to_owned(), 20)].into() };
        update(folder.path(), vec![of_model("eoi", 5.0), of_model("cpuid", 3000.0)], Some(boot)).unwrap();
        update(folder.path(), vec![of_model("cpuid", 2900.0)], None).unwrap();
        let kept = read(folder.path()).unwrap();
        assert_eq!(
            kept.figures.iter().map(|figure| (&figure.operation[..], figure.instructions)).collect::<Vec<_>>(),
            [("cpuid", 2900.0), ("eoi", 5.0)]
        );
        let page = std::fs::read_to_string(folder.path().join(PAGE)).unwrap();
        assert!(page.contains("| cpuid | 2,900 |") && page.contains("| HLT | 20 |") && !page.contains("old"), "{page}");
    }
}
