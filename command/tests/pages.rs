//! The pages of the documentation stay short and narrow, and their links lead somewhere.

use std::path::{Path, PathBuf};

/// Maximum number of lines of a page. Longer ones must be split: by use, internals and measurements, for example.
const MAX_LINES: usize = 200;

/// Maximum number of characters of a line of prose.
const MAX_COLUMNS: usize = 120;

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

/// The Rust files in a folder, and in those within it.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The suite has no step for examples in documentation, which takes a minute even if there are none.
#[test]
fn documentation_has_no_examples_to_run() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let mut files = Vec::new();
    for folder in ["bench", "cli", "command", "crates", "devices", "fuzz", "hypervisor", "plugins"] {
        sources(&repository.join(folder), &mut files);
    }
    assert!(files.len() > 500, "only {} files were found", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a file");
        let comments = text.lines().map(str::trim_start).filter_map(|line| line.strip_prefix("///").or(line.strip_prefix("//!")));
        // Every second fence opens a block.
        let fences = comments.map(str::trim).filter(|line| line.starts_with("```")).step_by(2);
        for fence in fences {
            assert!(fence == "```text", "{}: no test runs the example after {fence}", file.display());
        }
    }
}

/// Whether a line can't be wrapped: a row of a table, code, or a link.
fn is_wide(line: &str) -> bool {
    line.starts_with('|') || line.starts_with("    ") || line.contains("](") || line.contains("://")
}

/// The lines of prose that are too long, by number.
fn long_lines(text: &str) -> Vec<usize> {
    let mut is_code = false;
    let mut long = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        is_code ^= line.trim_start().starts_with("```");
        if !is_code && !is_wide(line) && line.chars().count() > MAX_COLUMNS {
            long.push(number);
        }
    }
    long
}

#[test]
fn prose_is_wrapped() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let named = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|name| repository.join(name));
    let docs = pages().into_iter().filter(|page| page.parent() == Some(&repository.join("docs")));
    for page in named.into_iter().chain(docs) {
        let long = long_lines(&std::fs::read_to_string(&page).expect("a page"));
        assert!(long.is_empty(), "{}: lines of more than {MAX_COLUMNS} columns: {long:?}", page.display());
    }
}

#[test]
fn long_lines_are_found() {
    let long = "word ".repeat(30);
    let text = format!("{long}\n| {long} |\n    {long}\n```\n{long}\n```\n{long}[a](b.md)\n- {long}\n");
    assert_eq!(long_lines(&text), [1, 8]);
}

#[test]
fn links_are_found() {
    let text = "[a](a.md), ![b](b.svg), [c](c.md#part), [d](#part), [e](https://example.org)";
    assert_eq!(links(text).collect::<Vec<_>>(), ["a.md", "b.svg", "c.md"]);
}
