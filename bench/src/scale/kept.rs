//! The figures that the repository keeps (`bench/scale.jsonl`), and the pages in `docs/` that are generated from them.

use std::path::Path;

use anyhow::Result;

use super::figure::Figure;
use super::{picture, table};
use crate::json_lines;
use crate::store::{self, File};
use stile::config::Arch;

/// The files, from the repository's folder.
const FIGURES: &str = "bench/scale.jsonl";
const PAGE: &str = "docs/bench-scale.md";

/// The table's name on the page, the architecture, and the picture.
const PARTS: [(&str, Arch, &str); 2] =
    [("scale", Arch::Aarch64, "docs/bench-scale.svg"), ("scale of x86_64", Arch::X86_64, "docs/bench-scale-x86_64.svg")];

/// The command that writes them.
const COMMAND: &str = "stile bench --scale --update";

/// Replaces older figures of the same operation, machine and model, and regenerates the page and the pictures.
///
/// # Errors
/// A file can't be read or written, or is not as expected.
pub fn update(repository: &Path, new: Vec<Figure>) -> Result<()> {
    let mut figures = store::read(repository, FIGURES)?;
    store::replace(&mut figures, new, Figure::is_of_same);
    figures.sort_by_key(Figure::place);
    let made = made(repository, &figures)?;
    store::write(repository, [(FIGURES, json_lines::write(&figures)?)].into_iter().chain(made))
}

/// The page and the pictures.
fn made(repository: &Path, figures: &[Figure]) -> Result<Vec<File>> {
    let parts = PARTS.map(|(name, arch, picture)| {
        let of_page = |figure: &&Figure| figure.cpu == arch.default_cpu_model();
        (name, figures.iter().filter(of_page).cloned().collect::<Vec<_>>(), picture)
    });
    let page = store::page(repository, PAGE, COMMAND, parts.iter().map(|(name, figures, _)| ((*name).to_owned(), table::page(figures))))?;
    Ok([page].into_iter().chain(parts.map(|(_, figures, file)| (file, picture::draw(&figures)))).collect())
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;
    use crate::store::tests::assert_current;
    use stile::cargo;

    #[test]
    fn page_and_picture_show_the_kept_figures() {
        let repository = cargo::repository();
        let figures: Vec<Figure> = store::read(&repository, FIGURES).unwrap();
        assert!(!figures.is_empty());
        assert_current(&repository, COMMAND, made(&repository, &figures).unwrap());
    }

    #[test]
    fn new_figures_replace_older_ones_and_others_stay() {
        let folder = store::tests::repository(COMMAND, &[(PAGE, PARTS.map(|(name, ..)| name.to_owned()).to_vec())]);
        update(folder.path(), vec![figure(2, "ipi", 200.0), figure(64, "ipi", 300.0)]).unwrap();
        update(folder.path(), vec![figure(64, "ipi", 220.0)]).unwrap();
        let kept: Vec<Figure> = store::read(folder.path(), FIGURES).unwrap();
        assert_eq!(kept.iter().map(|figure| figure.instructions).collect::<Vec<_>>(), [200.0, 220.0]);
        let page = std::fs::read_to_string(folder.path().join(PAGE)).unwrap();
        assert!(page.contains("| ipi | 200 | 220 | 1.10 |\n") && !page.contains("old"), "{page}");
    }
}
