//! The figures that the repository keeps (`bench/scale.jsonl`), and what is generated from them in `docs/`.

use std::path::Path;

use anyhow::{Context, Result};

use super::figure::{self, Figure};
use super::{picture, table};
use crate::page::fill;

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
    let mut figures = read(repository)?;
    figures.retain(|old| !new.iter().any(|new| new.is_of_same(old)));
    figures.extend(new);
    figures.sort_by_key(Figure::place);
    for (path, text) in [(FIGURES, figure::write(&figures)?)].into_iter().chain(made(repository, &figures)?) {
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

/// The page and the picture: paths and contents.
fn made(repository: &Path, figures: &[Figure]) -> Result<[(&'static str, String); 2]> {
    let figures: Vec<_> = figures.iter().filter(|figure| figure.cpu == MODEL).cloned().collect();
    let path = repository.join(PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let page = fill(&page, "scale", COMMAND, &table::page(&figures)).with_context(|| format!("reading {PAGE}"))?;
    Ok([(PAGE, page), (PICTURE, picture::draw(&figures))])
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;
    use stile::cargo;

    #[test]
    fn page_and_picture_show_the_kept_figures() {
        let repository = cargo::repository();
        let figures = read(&repository).unwrap();
        assert!(!figures.is_empty());
        for (path, expected) in made(&repository, &figures).unwrap() {
            let text = std::fs::read_to_string(repository.join(path)).unwrap();
            assert!(text == expected, "{path} does not show the figures of {FIGURES}: run `{COMMAND}`");
        }
    }

    #[test]
    fn new_figures_replace_older_ones_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bench", "docs"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join(PAGE), format!("<!-- scale: written by `{COMMAND}` -->\nold\n<!-- end of scale -->\n")).unwrap();
        update(folder.path(), vec![figure(2, "ipi", 200.0), figure(64, "ipi", 300.0)]).unwrap();
        update(folder.path(), vec![figure(64, "ipi", 220.0)]).unwrap();
        let kept = read(folder.path()).unwrap();
        assert_eq!(kept.iter().map(|figure| figure.instructions).collect::<Vec<_>>(), [200.0, 220.0]);
        let page = std::fs::read_to_string(folder.path().join(PAGE)).unwrap();
        assert!(page.contains("| ipi | 200 | 220 | 1.10 |\n") && !page.contains("old"), "{page}");
    }
}
