//! Files that a command replaces by renaming a complete one.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{cleanup, exit};

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

/// Checks that a file can be made or replaced at `path`, before minutes of work.
///
/// # Errors
/// Its directory does not exist or can't be written, or it is a directory itself.
pub fn check(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return Err(exit::usage(format!("{}: there is no directory {}", path.display(), parent.display())));
    }
    if path.is_dir() {
        return Err(exit::usage(format!("{} is a directory: name a file in it", path.display())));
    }
    // Devices and pipes are written as they are.
    if !path.exists() || path.is_file() {
        let target = target(path)?;
        let folder = target.parent().unwrap_or(Path::new("/"));
        tempfile::tempfile_in(folder).map_err(|error| exit::usage(format!("no file can be made in {}: {error}", folder.display())))?;
    }
    Ok(())
}

/// Writes a file: it is replaced by the complete one, or stays as it was. Devices and pipes are written as they are.
///
/// # Errors
/// It can't be written.
pub fn write<T>(path: &Path, write: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
    if path.exists() && !path.is_file() {
        let writing = || format!("writing {}", path.display());
        let mut device = OpenOptions::new().write(true).open(path).with_context(writing)?;
        return write(&mut device).with_context(writing);
    }
    replace(path, write)
}

/// Replaces a file with contents that a device or pipe can't take: such a path is an error, as in [`target`].
///
/// # Errors
/// It can't be written.
pub fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
    let path = &target(path)?;
    let writing = || format!("writing {}", path.display());
    let mut builder = tempfile::Builder::new();
    // A new file's is subject to the user's umask.
    let mode = fs::metadata(path).map_or(0o666, |about| about.permissions().mode());
    builder.permissions(Permissions::from_mode(mode));
    let folder = path.parent().unwrap_or(Path::new("/"));
    let (mut file, _cleanup) = cleanup::removing(|| builder.tempfile_in(folder)).with_context(writing)?;
    let result = write(file.as_file_mut()).with_context(writing)?;
    file.persist(path).map_err(|error| error.error).with_context(writing)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
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

    #[test]
    fn a_file_is_whole_or_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("image");
        let put = |path: &Path, bytes: &[u8]| write(path, |file| Ok(file.write_all(bytes)?));
        put(&file, b"first").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        put(&file, b"second").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"second");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        put(Path::new("/dev/null"), b"nothing").unwrap();
        let error = replace(Path::new("/dev/null"), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("is not a file"), "{error:#}");
        let error = replace(&file, |file| {
            file.write_all(b"third")?;
            Err::<(), _>(anyhow::anyhow!("no more"))
        });
        let error = error.unwrap_err();
        assert!(format!("{error:#}").contains("no more"), "{error:#}");
        assert_eq!(fs::read(&file).unwrap(), b"second");
        let error = put(&dir.path().join("none/image"), b"").unwrap_err();
        assert!(error.to_string().contains("none/image"), "{error:#}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn places_without_a_directory_are_refused_early() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(&dir.path().join("image")).is_ok() && check(Path::new("image")).is_ok() && check(Path::new("/dev/null")).is_ok());
        for path in [dir.path().join("none/image"), dir.path().to_owned()] {
            assert_eq!(exit::status_of(&check(&path).unwrap_err()), exit::USAGE, "{}", path.display());
        }
    }
}
