//! The layers of the hypervisor's files, as `docs/layers.md` has them: tables with the lowest layer first.

use std::path::{Path, PathBuf};

use crate::graph::Edges;

/// The layers of the files in one folder.
pub struct Layers {
    /// The folder, relative to the sources; empty for all of them.
    pub folder: PathBuf,
    /// Names of the layers, from the lowest one, each with its files and folders. Folders end in `/`.
    rows: Vec<(String, Vec<String>)>,
}

impl Layers {
    /// Reads the page: each table belongs to the heading above it, which may name a folder.
    pub fn read(page: &str) -> Vec<Self> {
        let mut tables: Vec<Self> = Vec::new();
        for line in page.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                let folder = code(heading).into_iter().next().unwrap_or_default();
                tables.push(Self { folder: folder.into(), rows: Vec::new() });
            }
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if let (["", layer, files, ""], Some(table)) = (cells.as_slice(), tables.last_mut())
                && !code(files).is_empty()
            {
                table.rows.push(((*layer).to_owned(), code(files)));
            }
        }
        tables
    }

    /// The layer of a file, from 0, by the longest name that matches. `None` if no row names the file.
    fn layer(&self, file: &Path) -> Option<usize> {
        let file = file.to_str()?;
        let matches = |name: &str| if name.ends_with('/') { file.starts_with(name) } else { file == name };
        let named = self.rows.iter().enumerate().flat_map(|(layer, (_, names))| names.iter().map(move |name| (name, layer)));
        named.filter(|(name, _)| matches(name)).max_by_key(|(name, _)| name.len()).map(|(_, layer)| layer)
    }

    /// Whether a row names this file, or the file is outside the folder.
    pub fn knows(&self, file: &Path) -> bool {
        file.strip_prefix(&self.folder).map_or(true, |file| self.layer(file).is_some())
    }

    /// Rows and names that match none of these files.
    pub fn unused<'a>(&self, files: impl Iterator<Item = &'a Path> + Clone) -> Vec<String> {
        let is_used = |name: &str| {
            let path = self.folder.join(name);
            files.clone().any(|file| if name.ends_with('/') { file.starts_with(&path) } else { file == path })
        };
        self.rows.iter().flat_map(|(_, names)| names).filter(|name| !is_used(name)).cloned().collect()
    }

    /// The imports from a lower layer of the folder to a higher one, one line each.
    pub fn upward(&self, edges: &Edges) -> Vec<String> {
        let inside = |file: &Path| file.strip_prefix(&self.folder).ok().map(Path::to_owned);
        let lines = edges.iter().filter_map(|((from, to), names)| {
            let (from, to) = (inside(from)?, inside(to)?);
            let (lower, higher) = (self.layer(&from)?, self.layer(&to)?);
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let layer = |number: usize| &self.rows[number].0;
            (lower < higher).then(|| {
                let (from, to) = (from.display(), to.display());
                format!("{from} ({}) imports from {to} ({}): {}", layer(lower), layer(higher), names.join(", "))
            })
        });
        lines.collect()
    }
}

/// The words in backticks.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
