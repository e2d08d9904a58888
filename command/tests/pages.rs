//! The pages of the documentation stay short, and their links lead somewhere.

use std::path::{Path, PathBuf};

/// Maximum number of lines of a page. Longer ones must be split: by use, internals and measurements, for example.
const MAX_LINES: usize = 230;

/// The pages in the repository's root and in the folders that have some.
fn pages() -> Vec<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let folders = ["", "docs", "docs/upstream", "examples", "guests"].map(|folder| repository.join(folder));
    let entries = folders.into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The targets of a page's links to files, without anchors.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

#[test]
fn links_lead_to_files() {
    let pages = pages();
    assert!(pages.len() > 20, "only {} pages were found", pages.len());
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        for target in links(&text) {
            let path = page.parent().expect("a folder").join(target);
            assert!(path.exists(), "{}: {target} does not exist", page.display());
        }
    }
}

#[test]
fn pages_are_short() {
    for page in pages() {
        let lines = std::fs::read_to_string(&page).expect("a page").lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines, more than {MAX_LINES}: split it", page.display());
    }
}

#[test]
fn links_are_found() {
    let text = "[a](a.md), ![b](b.svg), [c](c.md#part), [d](#part), [e](https://example.org)";
    assert_eq!(links(text).collect::<Vec<_>>(), ["a.md", "b.svg", "c.md"]);
}
