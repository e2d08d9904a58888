//! Files that the user may have meant.

use std::path::Path;

use super::similar;

/// A file in the same folder with a similar name, relative to the same folder as `path`.
pub fn file_like(path: &Path) -> Option<String> {
    let file_name = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        entry.path().is_file().then_some(())?;
        entry.file_name().into_string().ok()
    };
    let name = path.file_name()?.to_str()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let names: Vec<String> = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?.filter_map(file_name).collect();
    let similar = similar(name, names.iter().map(String::as_str))?;
    Some(path.with_file_name(similar).display().to_string())
}
