//! The figures that the repository keeps (`bench/scale.jsonl`), and the pages in `docs/` that are generated from them.

use std::path::Path;

use anyhow::Result;

use super::figure::Figure;
use super::{picture, table};
use crate::json_lines;
use crate::store::{self, File};

/// The files, from the repository's folder.
const FIGURES: &str = "bench/scale.jsonl";
const PAGE: &str = "docs/bench-scale.md";
const PICTURE: &str = "docs/bench-scale.svg";

/// The command that writes them.
const COMMAND: &str = "stile bench --scale --update";

/// The CPU model of the page.
const MODEL: &str = "max";

/// Replaces older figures of the same operation, machine and model, and regenerates the page and the picture.
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

/// The page and the picture.
fn made(repository: &Path, figures: &[Figure]) -> Result<[File; 2]> {
    let figures: Vec<_> = figures.iter().filter(|figure| figure.cpu == MODEL).cloned().collect();
    let page = store::page(repository, PAGE, COMMAND, [("scale".to_owned(), table::page(&figures))])?;
    Ok([page, (PICTURE, picture::draw(&figures))])
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
        let folder = store::tests::repository(COMMAND, &[(PAGE, vec!["scale".to_owned()])]);
        update(folder.path(), vec![figure(2, "ipi", 200.0), figure(64, "ipi", 300.0)]).unwrap();
        update(folder.path(), vec![figure(64, "ipi", 220.0)]).unwrap();
        let kept: Vec<Figure> = store::read(folder.path(), FIGURES).unwrap();
        assert_eq!(kept.iter().map(|figure| figure.instructions).collect::<Vec<_>>(), [200.0, 220.0]);
        let page = std::fs::read_to_string(folder.path().join(PAGE)).unwrap();
        assert!(page.contains("| ipi | 200 | 220 | 1.10 |\n") && !page.contains("old"), "{page}");
    }
}
