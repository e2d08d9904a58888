//! The directory for what processes with root's rights leave each other by name. A back end that its client has taken over can write to
//! `/tmp`, and so take the names there of what other devices' processes are about to make.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// The directory of private files, which is root's.
const DIRECTORY: &str = "/run/stile-devices";

/// Makes the directory, which no other user can enter, unless it is there.
///
/// # Errors
/// It can't be made; others can write to it.
pub fn directory() -> io::Result<PathBuf> {
    owned_alone(Path::new(DIRECTORY))
}

fn owned_alone(path: &Path) -> io::Result<PathBuf> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("{}: others have rights to it", path.display())));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_of_this_user_alone_is_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run/private");
        for _ in 0..2 {
            assert_eq!(owned_alone(&path).expect("a directory"), path);
        }
        let mode = fs::metadata(&path).expect("the directory").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_name_that_others_took_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (open, link, file) = (folder.path().join("open"), folder.path().join("link"), folder.path().join("file"));
        fs::create_dir(&open).expect("a directory");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("its rights");
        symlink(folder.path(), &link).expect("a link");
        fs::write(&file, "").expect("a file");
        for path in [open, link, file] {
            let error = owned_alone(&path).expect_err("others have rights");
            assert!(error.to_string().contains("others have rights"), "{error}");
        }
    }
}
