//! Files extracted from Debian's packages, cached with their hashes: missing or changed files are fetched
//! again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::apt::Apt;
use super::deb::{self, Wanted};
use super::item::Item;
use super::mirror;
use crate::config::Arch;
use crate::{cache, exit, out};

/// Time for which a stored item is used without checking the mirror for a newer one.
const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);

/// Condition for a check for a newer version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// The stored file is a week old. Without a network it is used nevertheless.
    Weekly,
    /// Now.
    Check,
    /// Never: an item that isn't in the cache is an error.
    Cached,
}

/// A stored item.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    /// Its directory.
    #[serde(skip)]
    pub dir: PathBuf,
    /// Its package.
    pub package: String,
    /// The package's version.
    pub version: String,
    /// Time of the last request to the mirror, in seconds since 1970.
    checked: u64,
    /// The SHA-256 of each file, by name. Empty in a cache of an earlier version.
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Names of the files that were looked for in the package. Empty in a cache of an earlier version.
    #[serde(default)]
    sought: Vec<String>,
}

/// Cached files of an item.
enum Found {
    Nothing,
    /// A file is missing or was changed.
    Damaged(String),
    Intact(Stored),
}

impl Found {
    fn intact(self) -> Option<Stored> {
        match self {
            Self::Intact(stored) => Some(stored),
            Self::Nothing | Self::Damaged(_) => None,
        }
    }
}

/// The item, if it is in the cache and undamaged.
pub fn cached(arch: Arch, item: Item) -> Option<Stored> {
    read(&directory(arch).ok()?.join(item.name()), item.wanted()).intact()
}

/// Folder of an architecture's items, and of apt's files.
///
/// # Errors
/// The cache has no directory.
pub fn directory(arch: Arch) -> Result<PathBuf> {
    Ok(cache::dir()?.join(match arch {
        Arch::Aarch64 => "debian",
        Arch::X86_64 => "debian-amd64",
    }))
}

/// Gets an item, from the cache or the mirror.
pub fn get(arch: Arch, item: Item, freshness: Freshness) -> Result<Stored> {
    get_from(&directory(arch)?, arch, item, freshness)
}

/// Gets an item from a folder of items, or from the mirror.
fn get_from(debian: &Path, arch: Arch, item: Item, freshness: Freshness) -> Result<Stored> {
    let dir = debian.join(item.name());
    let is_fresh = |stored: &Stored| match freshness {
        Freshness::Weekly => now().saturating_sub(stored.checked) < FRESH.as_secs(),
        Freshness::Check => false,
        Freshness::Cached => true,
    };
    if let Some(stored) = read(&dir, item.wanted()).intact().filter(is_fresh) {
        return Ok(stored);
    }
    if freshness == Freshness::Cached {
        return Err(exit::lacking(format!("{} is not in the cache", item.name())));
    }
    // A cache that can't be written is used, too, once it is stale.
    let lock = cache::lock(debian, "fetch");
    // Another command may have fetched it while this one waited.
    let found = read(&dir, item.wanted());
    if let Found::Damaged(what) = &found {
        out::note(format_args!("stile: {} in the cache is damaged ({what}): fetching it again", item.name()));
    }
    let stored = found.intact();
    if stored.as_ref().is_some_and(is_fresh) {
        return stored.context("the cache changed while it was read");
    }
    let fetched = lock.and_then(|_lock| fetch(arch, item, debian, &dir, stored.as_ref()));
    match (fetched, stored) {
        (Ok(fetched), _) => Ok(fetched),
        (Err(error), Some(stored)) if freshness == Freshness::Weekly => {
            out::note(format_args!("stile: {error:#}\nstile: using {} {} from the cache", stored.package, stored.version));
            Ok(stored)
        }
        (Err(error), _) => Err(error),
    }
}

/// Queries the mirror, and downloads unless the newest version is stored already.
fn fetch(arch: Arch, item: Item, debian: &Path, dir: &Path, stored: Option<&Stored>) -> Result<Stored> {
    let apt = Apt::new(arch, &debian.join("apt"), item.suite(), &mirror::mirror()?)?;
    let package =
        item.choose(arch, &apt.packages()?).with_context(|| format!("Debian {} has no package for {}", item.suite(), item.name()))?;
    let (name, version) = (package.name.clone(), package.version.clone());
    let mut fetched =
        Stored { dir: dir.to_owned(), package: name, version, checked: now(), files: BTreeMap::new(), sought: names(item.wanted()) };
    let is_same =
        |stored: &&Stored| (&stored.package, &stored.version, &stored.sought) == (&fetched.package, &fetched.version, &fetched.sought);
    if let Some(stored) = stored.filter(is_same) {
        fetched.files = stored.files.clone();
        write_about(dir, &fetched)?;
        return Ok(fetched);
    }
    // Built aside and moved into place: an interrupted command leaves no partial item.
    let download = tempfile::tempdir_in(debian)?;
    let file = apt.download(&package, download.path())?;
    let made = tempfile::tempdir_in(debian)?;
    deb::extract(&file, item.wanted(), made.path())?;
    fetched.files = hashes(made.path(), item.wanted())?;
    write_about(made.path(), &fetched)?;
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    let made = made.keep();
    fs::rename(&made, dir).with_context(|| format!("moving {} to {}", made.display(), dir.display()))?;
    Ok(fetched)
}

const ABOUT: &str = "about.json";

/// Reads an item with these files from the cache, and verifies the files' hashes. Items of an earlier
/// version, without hashes, are not verified.
fn read(dir: &Path, wanted: &[Wanted]) -> Found {
    let Ok(text) = fs::read(dir.join(ABOUT)) else { return Found::Nothing };
    let Ok(stored) = serde_json::from_slice::<Stored>(&text) else { return Found::Damaged(format!("{ABOUT} can't be read")) };
    // An earlier version looked for fewer files: stale, so that the package is fetched again.
    let is_whole = wanted.iter().all(|file| file.required || stored.sought.iter().any(|name| name == file.name));
    let checked = if is_whole { stored.checked } else { 0 };
    let files = match hashes(dir, wanted) {
        Ok(files) => files,
        Err(error) => return Found::Damaged(format!("{error:#}")),
    };
    if let Some((name, _)) = files.iter().find(|(name, hash)| stored.files.get(*name).is_some_and(|stored| stored != *hash)) {
        return Found::Damaged(format!("{name} was changed"));
    }
    Found::Intact(Stored { dir: dir.to_owned(), checked, files, ..stored })
}

fn names(wanted: &[Wanted]) -> Vec<String> {
    wanted.iter().map(|file| file.name.to_owned()).collect()
}

/// The hashes of an item's files.
fn hashes(dir: &Path, wanted: &[Wanted]) -> Result<BTreeMap<String, String>> {
    let expected = wanted.iter().filter(|file| file.required || dir.join(file.name).exists());
    expected.map(|file| Ok((file.name.to_owned(), hash(&dir.join(file.name))?))).collect()
}

/// The SHA-256 of a file, in hexadecimal digits.
fn hash(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(HEXLOWER.encode(&Sha256::digest(&bytes)))
}

/// Writes [`ABOUT`] in one step: others may read it, and an interrupted command leaves the earlier one. The lock is held.
fn write_about(dir: &Path, stored: &Stored) -> Result<()> {
    let (path, new) = (dir.join(ABOUT), dir.join(format!("{ABOUT}.new")));
    let text = serde_json::to_vec_pretty(stored)?;
    fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).with_context(|| format!("writing {}", path.display()))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: [Wanted; 2] =
        [Wanted { is: |_| true, name: "kernel", required: true }, Wanted { is: |_| true, name: "initrd", required: true }];

    /// Stores an item with two files, with or without hashes.
    fn store(dir: &Path, with_hashes: bool) {
        fs::write(dir.join("kernel"), "a kernel").unwrap();
        fs::write(dir.join("initrd"), "").unwrap();
        let files = if with_hashes { hashes(dir, &WANTED).unwrap() } else { BTreeMap::new() };
        let stored = Stored { dir: dir.to_owned(), package: "linux".into(), version: "1".into(), checked: 1, files, sought: Vec::new() };
        write_about(dir, &stored).unwrap();
    }

    fn damage(dir: &Path) -> Option<String> {
        match read(dir, &WANTED) {
            Found::Damaged(what) => Some(what),
            Found::Nothing | Found::Intact(_) => None,
        }
    }

    #[test]
    fn damaged_files_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read(dir.path(), &WANTED), Found::Nothing));
        store(dir.path(), true);
        assert!(read(dir.path(), &WANTED).intact().is_some_and(|stored| stored.version == "1"));
        fs::write(dir.path().join("kernel"), "a kern").unwrap();
        assert_eq!(damage(dir.path()).as_deref(), Some("kernel was changed"));
        fs::remove_file(dir.path().join("kernel")).unwrap();
        assert!(damage(dir.path()).is_some_and(|what| what.contains("kernel")));
        store(dir.path(), true);
        fs::write(dir.path().join(ABOUT), "{").unwrap();
        assert!(damage(dir.path()).is_some());
    }

    #[test]
    fn files_that_were_not_looked_for_are_fetched() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), true);
        let more = [Wanted { is: |_| true, name: "kernel", required: true }, Wanted { is: |_| true, name: "module", required: false }];
        let checked = |found: Found| found.intact().map(|stored| stored.checked);
        assert_eq!(checked(read(dir.path(), &more)), Some(0), "stale");
        let about = fs::read_to_string(dir.path().join(ABOUT)).unwrap();
        fs::write(dir.path().join(ABOUT), about.replace(r#""sought": []"#, r#""sought": ["kernel", "module"]"#)).unwrap();
        assert!(matches!(read(dir.path(), &more), Found::Intact(_)));
    }

    #[test]
    fn a_stale_item_is_used_if_the_cache_cannot_be_written() {
        let debian = tempfile::tempdir().unwrap();
        let dir = debian.path().join("busybox");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("busybox"), "a program").unwrap();
        let files = hashes(&dir, Item::Busybox.wanted()).unwrap();
        let stored =
            Stored { dir: dir.clone(), package: "busybox-static".into(), version: "1".into(), checked: 1, files, sought: Vec::new() };
        write_about(&dir, &stored).unwrap();
        // Not a file: the lock can't be made, for root neither.
        fs::create_dir(debian.path().join("fetch.lock")).unwrap();
        let get = |freshness| get_from(debian.path(), Arch::Aarch64, Item::Busybox, freshness);
        assert_eq!(get(Freshness::Weekly).unwrap().version, "1");
        assert!(get(Freshness::Check).unwrap_err().to_string().contains("fetch.lock"));
    }

    #[test]
    fn a_reader_finds_the_earlier_description_or_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), true);
        let text = fs::read_to_string(dir.path().join(ABOUT)).unwrap();
        let mut earlier = fs::File::open(dir.path().join(ABOUT)).unwrap();
        store(dir.path(), false);
        let mut read = String::new();
        std::io::Read::read_to_string(&mut earlier, &mut read).unwrap();
        assert_eq!(read, text);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "two files and their description");
    }

    #[test]
    fn files_of_an_earlier_version_are_not_verified() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), false);
        let stored = read(dir.path(), &WANTED).intact().unwrap();
        assert_eq!(stored.files["kernel"], hash(&dir.path().join("kernel")).unwrap());
        fs::remove_file(dir.path().join("initrd")).unwrap();
        assert!(damage(dir.path()).is_some());
    }
}
