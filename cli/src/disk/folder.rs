//! Folders of this machine that VMs share.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Maximum length of a tag in bytes: QEMU's limit.
const LONGEST_TAG: usize = 31;

/// The tag of a folder without a usable name, such as `/`.
const UNNAMED: &str = "share";

/// A folder that a VM can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// Its path.
    pub path: PathBuf,
    /// Whether the VM can only read it.
    pub read_only: bool,
    /// Its name in the VM, which mounts it at `/mnt/TAG`. See [`is_tag`].
    pub tag: String,
    /// Whether a VM that `stile run` adds serves it.
    pub served: bool,
}

impl Folder {
    /// Parses `DIR[,readonly][,tag=NAME][,served]`. The path may contain commas unless an option follows one.
    ///
    /// # Errors
    /// No path, or a tag that can't be one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut rest, mut read_only, mut tag, mut served) = (text, false, None, false);
        while let Some((before, word)) = rest.rsplit_once(',') {
            match word.split_once('=') {
                None if word == "readonly" => read_only = true,
                None if word == "served" => served = true,
                Some(("tag", name)) if is_tag(name) => tag = Some(name.to_owned()),
                Some(("tag", name)) => return Err(format!("\"{name}\" can't be a tag; expected {TAG}")),
                _ => break,
            }
            rest = before;
        }
        if rest.is_empty() {
            return Err("expected DIR[,readonly][,tag=NAME][,served]".into());
        }
        let path = PathBuf::from(rest);
        let tag = tag.unwrap_or_else(|| default_tag(&path));
        Ok(Self { path, read_only, tag, served })
    }

    /// Returns why a VM can't use the folder, and what is expected instead; `None` if it can.
    pub fn problem(&self) -> Option<(String, &'static str)> {
        let name = self.path.display();
        let unreadable = |error: io::Error| {
            Some((format!("the folder \"{name}\" can't be read: {error}"), "a folder that this user may read and enter"))
        };
        match self.path.metadata() {
            Ok(about) if about.is_dir() => {}
            Ok(_) => return Some((format!("\"{name}\" is not a folder"), "a folder, such as the one that it is in")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Some((format!("the folder \"{name}\" does not exist"), "a folder that exists: mkdir makes it"));
            }
            Err(error) => return unreadable(error),
        }
        if let Err(error) = fs::read_dir(&self.path).and_then(|_| Ok(access(&self.path, Access::EXEC_OK)?)) {
            return unreadable(error);
        }
        match access(&self.path, Access::WRITE_OK) {
            Err(error) if !self.read_only => {
                Some((format!("the folder \"{name}\" can't be written: {error}"), "readonly, or a folder that this user may write"))
            }
            _ => None,
        }
    }

    /// The file system as which Linux mounts the folder.
    pub const fn file_system(&self) -> &'static str {
        if self.served { "virtiofs" } else { "9p" }
    }

    /// The options with which Linux mounts the folder, as those of `mount -o`.
    pub fn mount_options(&self) -> String {
        // Without a cache, which is the default, changes by the host and by other VMs show at once.
        let options = if self.served { "" } else { "trans=virtio,version=9p2000.L,msize=262144," };
        format!("{options}{}", if self.read_only { "ro" } else { "rw" })
    }
}

/// Description of tags, for messages.
pub const TAG: &str = "1 to 31 of a to z, A to Z, 0 to 9, '-', '_' and '.', of which the first is a letter or a digit";

/// Whether `text` can be a tag. Tags are words of kernel command lines, of shell scripts and of QEMU's options, and names of directories.
pub fn is_tag(text: &str) -> bool {
    (1..=LONGEST_TAG).contains(&text.len()) && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_in_tag)
}

const fn is_in_tag(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// The tag of a folder that is not given one: its name, as far as it can be one.
pub fn default_tag(path: &Path) -> String {
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = std::path::absolute(path).ok().as_ref().and_then(name).or_else(|| path.canonicalize().ok().as_ref().and_then(name));
    let tag: String = name.unwrap_or_default().chars().map(|c| if is_in_tag(c) { c } else { '-' }).collect();
    let tag = tag.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    // All characters take one byte.
    let tag = &tag[..tag.len().min(LONGEST_TAG)];
    if tag.is_empty() { UNNAMED.to_owned() } else { tag.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_the_path() {
        let folder = |path: &str, read_only, tag: &str| Ok(Folder { path: path.into(), read_only, tag: tag.into(), served: false });
        assert_eq!(Folder::parse("/a/src"), folder("/a/src", false, "src"));
        assert!(Folder::parse("/a/src,served,readonly").unwrap().served);
        assert_eq!(Folder::parse("/a/b,c,readonly,tag=x.y"), folder("/a/b,c", true, "x.y"));
        assert_eq!(Folder::parse("tag=x"), folder("tag=x", false, "tag-x"));
        for wrong in ["", ",readonly", "/a,tag=", "/a,tag=..", "/a,tag=a b", "/a,tag=a/b", "/a,tag=a,tag=-b"] {
            assert!(Folder::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tags_come_from_names() {
        for (path, tag) in [("/", "share"), ("/a/.config", "config"), ("/a/my files", "my-files"), ("/a/ä", "share"), ("/a/b/", "b")] {
            assert_eq!(default_tag(Path::new(path)), tag, "{path}");
        }
        let here = std::env::current_dir().unwrap();
        assert_eq!(default_tag(Path::new(".")), default_tag(&here));
        assert_eq!(default_tag(Path::new("..")), default_tag(here.parent().unwrap()));
        let long = default_tag(Path::new(&"x".repeat(100)));
        assert!(is_tag(&long) && long.len() == LONGEST_TAG);
    }

    #[test]
    fn other_paths_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let says = |path: PathBuf| Folder { path, read_only: false, tag: "a".into(), served: false }.problem().map(|(what, _)| what);
        assert_eq!(says(dir.path().to_owned()), None);
        assert!(says(dir.path().join("none")).unwrap().contains("does not exist"));
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(says(dir.path().join("file")).unwrap().contains("is not a folder"));
        assert!(says(dir.path().join("file/x")).unwrap().contains("can't be read"));
    }
}
