//! The cache directory: fetched and built files kept between runs, outside the repository.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::exit;

/// The cache's directory, made if it isn't there: `STILE_CACHE`, or `stile` in the user's cache directory.
pub fn dir() -> Result<PathBuf> {
    let dir = location(&|name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
        .ok_or_else(|| exit::lacking("no place for the cache: set STILE_CACHE or HOME"))?;
    fs::create_dir_all(&dir).with_context(|| format!("making the cache directory {}", dir.display()))?;
    Ok(dir)
}

fn location(env: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    env("STILE_CACHE")
        .or_else(|| env("XDG_CACHE_HOME").map(|dir| dir.join("stile")))
        .or_else(|| env("HOME").map(|dir| dir.join(".cache/stile")))
}

/// Holds a lock on part of the cache until dropped, so that two commands don't fetch the same files.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the open file is the lock")] File);

/// Prefix of directories made by [`tempfile`].
const TEMPORARY: &str = ".tmp";

/// Waits for the lock `name`, the only one in `dir`. Only its holder creates temporary entries in `dir`:
/// existing ones were left by an interrupted command, and are removed.
pub fn lock(dir: &Path, name: &str) -> Result<Lock> {
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let path = dir.join(format!("{name}.lock"));
    let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).with_context(|| format!("locking {}", path.display()))?;
    for left in fs::read_dir(dir).into_iter().flatten().flatten() {
        if left.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) {
            // Harmless if it remains.
            let _ = fs::remove_dir_all(left.path());
        }
    }
    Ok(Lock(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_an_interrupted_command_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let left = tempfile::tempdir_in(dir.path()).unwrap().keep();
        fs::write(left.join("half"), "made").unwrap();
        fs::create_dir(dir.path().join("kept")).unwrap();
        let _lock = lock(dir.path(), "build").unwrap();
        assert!(!left.exists() && dir.path().join("kept").exists());
    }

    #[test]
    fn the_most_specific_variable_takes_precedence() {
        let of = |set: &'static [(&str, &str)]| {
            location(&move |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value)))
        };
        assert_eq!(of(&[("HOME", "/home/a")]), Some("/home/a/.cache/stile".into()));
        assert_eq!(of(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/x")]), Some("/x/stile".into()));
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x"), ("STILE_CACHE", "/s")]), Some("/s".into()));
        assert_eq!(of(&[]), None);
    }
}
