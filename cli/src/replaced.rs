//! Files that a command replaces by renaming a complete one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::exit;

/// The absolute path of the file to replace: a link is followed to its target.
///
/// # Errors
/// The path leads to a directory, or to a device or the like: renaming would remove the device's node, and write nothing to it.
pub fn target(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(real) if real.is_file() => Ok(real),
        Ok(real) if real.is_dir() => Err(exit::usage(format!("{} is a directory: name a file in it", path.display()))),
        Ok(_) => Err(exit::usage(format!("{} is not a file: write to one, and copy that with dd", path.display()))),
        // A new file.
        Err(_) => std::path::absolute(path).with_context(|| path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, new] = ["file", "link", "new"].map(|name| dir.path().join(name));
        std::fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(target(&new).unwrap(), new);
        assert_eq!(target(&link).unwrap(), file.canonicalize().unwrap());
        assert!(target(Path::new("/dev/null")).unwrap_err().to_string().contains("is not a file"));
        assert!(target(dir.path()).unwrap_err().to_string().contains("is a directory"));
    }
}
