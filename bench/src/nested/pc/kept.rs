//! The figures that the repository keeps (`bench/nested-vmx.jsonl`), and the tables of `docs/` that are generated from them.

use std::path::Path;

use anyhow::Result;

use super::boot::Boot;
use super::figure::Figure;
use super::operations::{self, ENLIGHTENED};
use super::table;
use crate::json_lines;
use crate::page::markdown;
use crate::platform;
use crate::store::{self, File};
use stile::config::Arch;

/// The files of the figures.
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
    store::replace(&mut figures, new, Figure::is_of_same);
    figures.sort_by_key(|figure| (figure.cpu.clone(), figure.l1 == ENLIGHTENED, operations::place(&figure.operation)));
    store::replace(&mut boots, boot.into_iter().collect(), |old, new| old.cpu == new.cpu);
    let kept = Kept { figures, boots };
    let files = [(FIGURES, json_lines::write(&kept.figures)?), (BOOTS, json_lines::write(&kept.boots)?), page(repository, &kept)?];
    store::write(repository, files)
}

fn read(repository: &Path) -> Result<Kept> {
    Ok(Kept { figures: store::read(repository, FIGURES)?, boots: store::read(repository, BOOTS)? })
}

/// The page with the tables of the default CPU model.
fn page(repository: &Path, kept: &Kept) -> Result<File> {
    let model = platform::of(Arch::X86_64).cpu();
    let figures: Vec<_> = kept.figures.iter().filter(|figure| figure.cpu == model).cloned().collect();
    let boot = kept.boots.iter().find(|boot| boot.cpu == model).map_or(String::new(), |boot| markdown(&boot.rows()));
    let [plain, enlightened] = table::by_l1(&figures);
    let tables = [
        ("costs", markdown(&table::costs(&plain))),
        ("enlightened costs", markdown(&table::costs(&enlightened))),
        ("exits", markdown(&table::exits(&plain))),
        ("enlightened exits", markdown(&table::exits(&enlightened))),
        ("boot of L1", boot),
    ];
    store::page(repository, PAGE, COMMAND, tables.map(|(name, table)| (name.to_owned(), table)))
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;
    use crate::store::tests::assert_current;
    use stile::cargo;

    #[test]
    fn the_page_shows_the_kept_figures() {
        let repository = cargo::repository();
        let kept = read(&repository).unwrap();
        assert!(!kept.figures.is_empty() && !kept.boots.is_empty());
        assert_current(&repository, COMMAND, [page(&repository, &kept).unwrap()]);
    }

    #[test]
    fn new_figures_replace_older_ones_and_others_stay() {
        let tables = ["costs", "enlightened costs", "exits", "enlightened exits", "boot of L1"].map(str::to_owned).to_vec();
        let folder = store::tests::repository(COMMAND, &[(PAGE, tables)]);
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
