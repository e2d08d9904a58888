//! `stile check` accepts every sample of a configuration in the pages, and every example.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Sandbox, end};

/// The repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

/// The files in a folder of the repository, and in those below it, with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries
        .flat_map(|path| match path.is_dir() {
            true => files(&path, extension),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    found.sort();
    found
}

/// The blocks of code in a page, indented or fenced, that describe a machine.
fn samples(page: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    let mut fenced = false;
    for line in page.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let code = if fence {
            None
        } else if fenced {
            Some(line)
        } else {
            line.strip_prefix("    ").or(line.is_empty().then_some(""))
        };
        match code {
            Some(code) => blocks.last_mut().expect("one block").extend([code, "\n"]),
            None => blocks.push(String::new()),
        }
    }
    blocks.retain(|block| block.lines().any(|line| line.starts_with("[[vm]]")));
    blocks
}

/// Makes what a configuration names: kernels, initial RAM file systems, disks in memory, machines of a Stile in a VM, and folders.
fn provide(sandbox: &Sandbox, text: &str) {
    for folder in text.lines().filter_map(|line| line.strip_prefix("folder = \"")?.split('"').next()) {
        fs::create_dir(sandbox.path(folder)).expect("a folder");
    }
    let values = |key: &'static str| text.lines().filter_map(move |line| line.trim().strip_prefix(key)?.split('"').next());
    for initrd in values("initrd = \"").filter(|word| !["busybox", "none"].contains(word)) {
        fs::write(sandbox.path(initrd), [1; 100]).expect("a file");
    }
    for disk in values("file = \"").filter(|_| text.contains("in_memory = true")) {
        fs::write(sandbox.path(disk), [1; 512]).expect("a file");
    }
    let words = values("kernel = \"");
    for word in words.filter(|word| !word.starts_with("debian") && *word != "stile") {
        match word.strip_prefix("stile:") {
            Some(inner) => fs::write(sandbox.path(inner), "[[vm]]\nkernel = \"debian\"\n").expect("a file"),
            None => {
                fs::copy(sandbox.path("kernel"), sandbox.path(word)).expect("a file");
            }
        }
    }
}

#[test]
fn the_samples_in_the_pages_pass() {
    let mut pages = files(&repository().join("docs"), "md");
    pages.push(repository().join("README.md"));
    let mut count = 0;
    for page in pages {
        for text in samples(&fs::read_to_string(&page).expect("a page")) {
            let sandbox = Sandbox::new(b"");
            provide(&sandbox, &text);
            fs::write(sandbox.path("sample.toml"), &text).expect("a file");
            let (status, said) = end(&sandbox.stile(&["check", "sample.toml"]).output().expect("it starts"));
            assert_eq!(status, 0, "{}:\n{text}\n{said}", page.display());
            count += 1;
        }
    }
    assert!(count >= 3, "only {count} samples were found");
}

#[test]
fn the_examples_pass() {
    let examples = files(&repository().join("examples"), "toml");
    assert!(examples.len() >= 3, "only {} examples were found", examples.len());
    for example in examples {
        let text = fs::read_to_string(&example).expect("an example");
        // In an isolated environment, because an example may name files that its reader supplies.
        let sandbox = Sandbox::new(b"");
        for other in files(example.parent().expect("a folder"), "toml") {
            fs::copy(&other, sandbox.path(&other.file_name().expect("a name").to_string_lossy())).expect("a file");
        }
        let missing: Vec<&str> = text.lines().filter(|line| !line.contains("stile:")).collect();
        provide(&sandbox, &missing.join("\n"));
        let name = example.file_name().expect("a name").to_string_lossy().into_owned();
        let (status, said) = end(&sandbox.stile(&["check", &name]).output().expect("it starts"));
        assert_eq!(status, 0, "{}: {said}", example.display());
    }
}
