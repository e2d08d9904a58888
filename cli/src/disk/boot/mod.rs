//! Boot files of the system on a disk: kernel, initial RAM file system and parameters, as a boot loader's configuration names them, or the
//! newest kernel. Everything on the disk is untrusted input: a guest may have written it.

mod bls;
mod entry;
mod extlinux;
mod grub;
mod kernel;
mod newest;
mod partitions;
#[cfg(test)]
mod tests;
mod volume;

use std::cell::RefCell;
use std::rc::Rc;

use crate::config::Arch;
use crate::debian::compare_versions;
use crate::disk::contents::Contents;
pub use entry::Entry;
use partitions::partitions;
use volume::{Volume, Window};

/// The most bytes of a kernel or of the initial RAM file systems.
const LARGEST: u64 = 512 << 20;
/// The most entries of a Boot Loader Specification directory that are read.
const MOST_ENTRIES: usize = 100;

/// Boot files of a system.
#[derive(Debug)]
pub struct Files {
    /// The kernel.
    pub kernel: Vec<u8>,
    /// The initial RAM file system, if there is one.
    pub initrd: Option<Vec<u8>>,
    /// The kernel's parameters.
    pub parameters: String,
    /// Their place, for messages.
    pub about: String,
}

/// A file system of the disk.
struct Place {
    /// For the user.
    name: String,
    /// Linux's name of the partition, or of the disk if it has none: `root=...`.
    root: String,
    volume: Volume,
}

/// Reason why the system on a disk can't be started: a predicate of the disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unbootable {
    /// Its kernel is one for another architecture.
    #[error("has a {path} for {}", .arch.name())]
    OtherArch {
        /// The kernel's path.
        path: String,
        /// Its architecture.
        arch: Arch,
    },
    /// No kernel, no file system, or a file that can't be read.
    #[error("{0}")]
    Other(String),
}

impl From<String> for Unbootable {
    fn from(what: String) -> Self {
        Self::Other(what)
    }
}

/// Finds the kernel, initrd and parameters of the system on a disk of a VM of this architecture.
///
/// # Errors
/// No bootable system; the error describes the disk's contents.
pub fn find(disk: Contents, arch: Arch) -> Result<Files, Unbootable> {
    let (places, others) = places(disk)?;
    let found =
        from_bls(&places, arch).or_else(|| [from_extlinux, from_grub, from_names].into_iter().find_map(|source| source(&places, &others)));
    let Some((index, entry, source)) = found else {
        let has = |place: &Place| format!("{} has no kernel in / or /boot", place.name);
        let seen: Vec<_> = places.iter().map(has).chain(others.iter().map(|(name, _, what)| format!("{name} has {what}"))).collect();
        return Err(Unbootable::Other(match &seen[..] {
            [] => "has no partitions".to_owned(),
            _ => seen.join(", "),
        }));
    };
    let read = |path: &str| -> Result<Vec<u8>, String> {
        let by_uuid = places.iter().filter(|place| entry.uuid.as_ref().is_some_and(|uuid| place.volume.uuid().eq_ignore_ascii_case(uuid)));
        for place in by_uuid.chain([&places[index]]).chain(&places) {
            if let Some(bytes) = place.volume.read(path, LARGEST)? {
                return Ok(bytes);
            }
        }
        Err(format!("has no {path}, which {source} names"))
    };
    let kernel = read(&entry.kernel)?;
    match kernel::arch_of(&kernel) {
        Some(other) if other != arch => return Err(Unbootable::OtherArch { path: entry.kernel, arch: other }),
        None if !kernel::may_be_compressed(&kernel) => {
            return Err(Unbootable::Other(format!("has a {} that is no kernel for {}", entry.kernel, arch.name())));
        }
        _ => {}
    }
    let mut initrd = Vec::new();
    for name in &entry.initrds {
        // Archives begin at multiples of four bytes (Linux, "initramfs buffer format").
        initrd.resize(initrd.len().next_multiple_of(4), 0);
        initrd.extend(read(name)?);
        if initrd.len() as u64 > LARGEST {
            return Err(Unbootable::Other(format!("has initial RAM file systems of more than {} MiB", LARGEST >> 20)));
        }
    }
    let about = format!("{} ({source}), on {}", entry.kernel, places[index].name);
    Ok(Files { kernel, initrd: Some(initrd).filter(|initrd| !initrd.is_empty()), parameters: entry.options, about })
}

/// A partition without a supported file system: its name, `root=...`, and its contents.
type Other = (String, String, String);

/// The disk's file systems, in the order of the partitions.
fn places(disk: Contents) -> Result<(Vec<Place>, Vec<Other>), String> {
    let length = disk.length();
    let disk = Rc::new(RefCell::new(disk));
    let window = |start, length| Window::new(Rc::clone(&disk), start, length);
    // An ext4 file system on the whole disk may follow anything in its first sectors.
    let whole = Volume::open(window(0, length));
    if let Ok(volume @ Volume::Ext4(_)) = whole {
        return Ok((vec![Place { name: "the whole disk".into(), root: "/dev/vda".into(), volume }], Vec::new()));
    }
    let table = partitions(&mut disk.borrow_mut()).map_err(|error| format!("can't be read ({error})"))?;
    let Some(table) = table else {
        return Err(match whole {
            Err(what) => format!("has neither partitions nor an ext4 file system: {what}"),
            Ok(_) => "has neither partitions nor an ext4 file system".into(),
        });
    };
    let (mut places, mut others) = (Vec::new(), Vec::new());
    for partition in table {
        let (name, root) = (format!("partition {}", partition.number), format!("PARTUUID={}", partition.id));
        match Volume::open(window(partition.start, partition.length)) {
            Ok(volume) => places.push(Place { name, root, volume }),
            Err(what) => others.push((name, root, what)),
        }
    }
    Ok((places, others))
}

/// Returns the entry that each kind of configuration file starts: GRUB's, extlinux's, and the Boot Loader
/// Specification's. `environment` is GRUB's.
pub fn entries(text: &str, environment: &str) -> [Option<Entry>; 3] {
    let bls = bls::parse(text, Arch::Aarch64, |name| variable(environment, name)).map(|(_, entry)| entry);
    [grub::parse(text, environment), extlinux::parse(text), bls].map(|entry| entry.map(|entry| absolute("/boot/extlinux/", entry)))
}

/// A variable of GRUB's environment; empty if it is not there.
fn variable<'e>(environment: &'e str, name: &str) -> &'e str {
    environment.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

/// An entry, the index of the file system that its paths refer to, and its source.
type Found = Option<(usize, Entry, String)>;

/// Maximum length of GRUB's environment in bytes.
const LONGEST_ENVIRONMENT: usize = 16 << 10;

/// The directories that boot loaders search: the root of a file system (if it is `/boot`), and `/boot`.
const DIRECTORIES: [&str; 2] = ["/", "/boot/"];

/// Each directory of each file system.
fn directories(places: &[Place]) -> impl Iterator<Item = (usize, &Volume, &'static str)> {
    places.iter().enumerate().flat_map(|(index, place)| DIRECTORIES.map(|directory| (index, &place.volume, directory)))
}

/// The environment of GRUB in a directory; empty if it is longer than GRUB makes one (1 KiB), because it is searched for each variable.
fn grub_environment(volume: &Volume, directory: &str) -> String {
    let text = ["grub", "grub2"].into_iter().find_map(|grub| volume.text(&format!("{directory}{grub}/grubenv")));
    text.filter(|text| text.len() <= LONGEST_ENVIRONMENT).unwrap_or_default()
}

fn from_bls(places: &[Place], arch: Arch) -> Found {
    directories(places).find_map(|(index, volume, directory)| {
        let entries = format!("{directory}loader/entries");
        let environment = grub_environment(volume, directory);
        let names = volume.names(&entries).into_iter().filter(|name| name.ends_with(".conf")).take(MOST_ENTRIES);
        let read = names.filter_map(|name| {
            let file = format!("{entries}/{name}");
            let (version, entry) = bls::parse(&volume.text(&file)?, arch, |name| variable(&environment, name))?;
            Some((version, entry, file))
        });
        let (_, entry, file) = read.max_by(|one, other| compare_versions(&one.0, &other.0))?;
        Some((index, absolute("/", entry), file))
    })
}

fn from_extlinux(places: &[Place], _: &[Other]) -> Found {
    directories(places).find_map(|(index, volume, directory)| {
        let folder = format!("{directory}extlinux/");
        let file = format!("{folder}extlinux.conf");
        let entry = extlinux::parse(&volume.text(&file)?)?;
        Some((index, absolute(&folder, entry), file))
    })
}

fn from_grub(places: &[Place], _: &[Other]) -> Found {
    directories(places).find_map(|(index, volume, directory)| {
        ["grub", "grub2"].into_iter().find_map(|grub| {
            let file = format!("{directory}{grub}/grub.cfg");
            let entry = grub::parse(&volume.text(&file)?, &grub_environment(volume, directory))?;
            Some((index, absolute("/", entry), file))
        })
    })
}

/// The newest kernel, with the file system that looks like the root of a system.
fn from_names(places: &[Place], others: &[Other]) -> Found {
    directories(places).find_map(|(index, volume, directory)| {
        let entry = newest::choose(directory, &volume.names(directory))?;
        let is_root = |place: &&Place| ["/etc/fstab", "/sbin/init", "/usr/lib"].iter().any(|path| place.volume.has(path));
        let roots = [&places[index]].into_iter().chain(places).find(is_root);
        let root = match roots {
            // Only an initial RAM file system knows the numbers of file systems.
            Some(place) if !entry.initrds.is_empty() => format!("UUID={}", place.volume.uuid()),
            Some(place) => place.root.clone(),
            None => match others.iter().find(|(_, _, what)| ["btrfs", "xfs", "f2fs"].contains(&what.as_str())) {
                Some((_, root, _)) => root.clone(),
                None => places[index].root.clone(),
            },
        };
        let source = format!("the newest in {directory}");
        Some((index, Entry { options: format!("root={root} rw"), ..entry }, source))
    })
}

/// The entry with paths from the root of the file system.
fn absolute(directory: &str, entry: Entry) -> Entry {
    let path = |path: &String| {
        let from = if path.starts_with('/') { "/" } else { directory };
        let mut parts: Vec<&str> = Vec::new();
        for part in from.split('/').chain(path.split('/')) {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                _ => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    };
    Entry { kernel: path(&entry.kernel), initrds: entry.initrds.iter().map(path).collect(), ..entry }
}
