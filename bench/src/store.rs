//! Files of the repository that `stile bench` keeps: figures as lines of JSON, and the pages and pictures made from them.

use std::path::Path;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use crate::json_lines;
use crate::page::fill;

/// A file's path from the repository's folder, and its contents.
pub type File = (&'static str, String);

/// Reads the values of a file of [`json_lines`]; none if it doesn't exist.
///
/// # Errors
/// The file can't be read, or a line is malformed.
pub fn read<T: DeserializeOwned>(repository: &Path, file: &str) -> Result<Vec<T>> {
    if !repository.join(file).exists() {
        return Ok(Vec::new());
    }
    json_lines::read(&text(repository, file)?).with_context(|| format!("reading {file}"))
}

/// Replaces the old values for which `same` holds by new ones.
pub fn replace<T>(values: &mut Vec<T>, new: Vec<T>, same: impl Fn(&T, &T) -> bool) {
    values.retain(|old| !new.iter().any(|new| same(old, new)));
    values.extend(new);
}

/// Returns a page with these named tables, which `command` makes.
///
/// # Errors
/// The page can't be read, or lacks a table's marks.
pub fn page(repository: &Path, file: &'static str, command: &str, tables: impl IntoIterator<Item = (String, String)>) -> Result<File> {
    let text = text(repository, file)?;
    let filled = tables.into_iter().try_fold(text, |text, (name, table)| fill(&text, &name, command, &table));
    Ok((file, filled.with_context(|| format!("reading {file}"))?))
}

/// Writes files.
///
/// # Errors
/// One can't be written.
pub fn write(repository: &Path, files: impl IntoIterator<Item = File>) -> Result<()> {
    for (file, text) in files {
        let path = repository.join(file);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn text(repository: &Path, file: &str) -> Result<String> {
    let path = repository.join(file);
    std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Asserts that the repository has these files with these contents, which `command` makes from its figures.
    pub fn assert_current(repository: &Path, command: &str, files: impl IntoIterator<Item = File>) {
        for (file, expected) in files {
            assert!(text(repository, file).unwrap() == expected, "{file} does not show the kept figures: run `{command}`");
        }
    }

    /// Makes a repository with one page for each element, with empty tables of these names.
    pub fn repository(command: &str, pages: &[(&str, Vec<String>)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bench", "docs"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        for (file, tables) in pages {
            let table = |name| format!("<!-- {name}: written by `{command}` -->\nold\n<!-- end of {name} -->\n");
            std::fs::write(folder.path().join(file), tables.iter().map(table).collect::<String>()).unwrap();
        }
        folder
    }

    #[test]
    fn values_are_replaced_in_their_place_of_order() {
        let mut values = vec![(1, 'a'), (2, 'b')];
        replace(&mut values, vec![(2, 'c'), (3, 'd')], |old, new| old.0 == new.0);
        assert_eq!(values, [(1, 'a'), (2, 'c'), (3, 'd')]);
    }

    #[test]
    fn a_missing_file_has_no_values_and_a_malformed_one_is_named() {
        let folder = repository("c", &[]);
        assert!(read::<u64>(folder.path(), "bench/figures").unwrap().is_empty());
        write(folder.path(), [("bench/figures", "1\nx\n".to_owned())]).unwrap();
        let error = format!("{:#}", read::<u64>(folder.path(), "bench/figures").unwrap_err());
        assert!(error.contains("bench/figures") && error.contains("line 2"), "{error}");
    }
}
