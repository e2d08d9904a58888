//! File systems of a disk: ext4 (also ext2 and ext3) and FAT. Untrusted input.

use std::cell::RefCell;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::rc::Rc;

use ext4_view::{Ext4, Ext4Read};

use crate::disk::contents::Contents;

/// The most names of a directory that are looked at.
const MOST_NAMES: usize = 4096;
/// The most block groups of an ext4 file system: 32 TiB with blocks of 4 KiB.
const MOST_GROUPS: u64 = 1 << 18;

/// A disk that several file systems are read from.
pub type Shared = Rc<RefCell<Contents>>;

/// A part of a disk, as a file system sees it.
#[derive(Clone)]
pub struct Window {
    disk: Shared,
    start: u64,
    length: u64,
    at: u64,
}

impl Window {
    /// The `length` bytes from `start`.
    pub fn new(disk: Shared, start: u64, length: u64) -> Self {
        Self { disk, start, length, at: 0 }
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        if at.checked_add(to.len() as u64).is_none_or(|end| end > self.length) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the partition ends early"));
        }
        self.disk.borrow_mut().read(self.start + at, to)
    }

    fn has(&self, at: u64, mark: &[u8]) -> bool {
        let mut bytes = vec![0; mark.len()];
        self.read_at(at, &mut bytes).is_ok() && bytes == mark
    }
}

impl Ext4Read for Window {
    fn read(&mut self, start: u64, to: &mut [u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.read_at(start, to)?)
    }
}

impl Read for Window {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let length = to.len().min(left);
        self.read_at(self.at, &mut to[..length])?;
        self.at += length as u64;
        Ok(length)
    }
}

impl Seek for Window {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::other("a place before the partition"))?;
        Ok(self.at)
    }
}

/// Required by the FAT crate, which only writes on request.
impl Write for Window {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("the disk is only read"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file system.
pub enum Volume {
    /// ext4, ext3 or ext2.
    Ext4(Ext4),
    /// FAT, of an EFI system partition.
    Fat(Box<fatfs::FileSystem<Window>>),
}

impl Volume {
    /// Recognizes a file system.
    ///
    /// # Errors
    /// Another one or none: the error names it.
    pub fn open(window: Window) -> Result<Self, String> {
        if window.has(0x438, &[0x53, 0xef]) {
            groups_are_few(&window)?;
            return Ext4::load(Box::new(window)).map(Self::Ext4).map_err(|error| format!("a damaged ext4 file system ({error})"));
        }
        let others: [(u64, &[u8], &str); 6] = [
            (0x10040, b"_BHRfS_M", "btrfs"),
            (0, b"XFSB", "xfs"),
            (0, b"LUKS\xba\xbe", "LUKS"),
            (0x218, b"LVM2 001", "LVM"),
            (0x400, &[0x10, 0x20, 0xf5, 0xf2], "f2fs"),
            (0xff6, b"SWAPSPACE2", "swap"),
        ];
        if let Some((_, _, name)) = others.iter().find(|(at, mark, _)| window.has(*at, mark)) {
            return Err((*name).to_owned());
        }
        if window.has(510, &[0x55, 0xaa]) && fat_is_sound(&window) {
            let fat = fatfs::FileSystem::new(window, fatfs::FsOptions::new().update_accessed_date(false));
            return fat.map(|fat| Self::Fat(Box::new(fat))).map_err(|error| format!("a damaged FAT file system ({error})"));
        }
        Err("no known file system".into())
    }

    /// Returns Linux's name of it in `root=UUID=`.
    pub fn uuid(&self) -> String {
        match self {
            Self::Ext4(ext4) => ext4.uuid().to_string(),
            Self::Fat(fat) => format!("{:04X}-{:04X}", fat.volume_id() >> 16, fat.volume_id() & 0xffff),
        }
    }

    /// The contents of a file; none if it is not there.
    ///
    /// # Errors
    /// It has more than `most` bytes, or can't be read.
    pub fn read(&self, path: &str, most: u64) -> Result<Option<Vec<u8>>, String> {
        let too_large = |length: u64| format!("{path} has {} MiB, at most {} are expected", length >> 20, most.div_ceil(1 << 20));
        match self {
            Self::Ext4(ext4) => {
                let Ok(about) = ext4.metadata(path) else { return Ok(None) };
                match about.len() {
                    _ if about.is_dir() => Ok(None),
                    length if length > most => Err(too_large(length)),
                    _ => ext4.read(path).map(Some).map_err(|error| format!("{path} can't be read ({error})")),
                }
            }
            Self::Fat(fat) => {
                let Ok(mut file) = fat.root_dir().open_file(path) else { return Ok(None) };
                let mut bytes = Vec::new();
                let read = io::Read::by_ref(&mut file).take(most + 1).read_to_end(&mut bytes);
                read.map_err(|error| format!("{path} can't be read ({error})"))?;
                if bytes.len() as u64 > most { Err(too_large(bytes.len() as u64)) } else { Ok(Some(bytes)) }
            }
        }
    }

    /// The text of a file that a person may have written: none if it is not there or no text.
    pub fn text(&self, path: &str) -> Option<String> {
        let bytes = self.read(path, 1 << 20).ok()??;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether there is such a file or directory.
    pub fn has(&self, path: &str) -> bool {
        match self {
            Self::Ext4(ext4) => ext4.exists(path).unwrap_or(false),
            Self::Fat(fat) => fat.root_dir().open_file(path).is_ok() || fat.root_dir().open_dir(path).is_ok(),
        }
    }

    /// Returns the names in a directory; none if it does not exist.
    pub fn names(&self, directory: &str) -> Vec<String> {
        match self {
            Self::Ext4(ext4) => {
                let entries = ext4.read_dir(directory).into_iter().flatten().take(MOST_NAMES);
                entries.map_while(Result::ok).filter_map(|entry| entry.file_name().as_str().ok().map(str::to_owned)).collect()
            }
            Self::Fat(fat) => {
                let root = fat.root_dir();
                let opened = match directory.trim_matches('/') {
                    "" => Ok(root),
                    path => root.open_dir(path),
                };
                let entries = opened.iter().flat_map(|directory| directory.iter()).take(MOST_NAMES);
                entries.map_while(Result::ok).map(|entry| entry.file_name()).collect()
            }
        }
    }
}

/// Rejects a number of block groups that would take much memory: the superblock's fields blocks_count, blocks_per_group.
fn groups_are_few(window: &Window) -> Result<(), String> {
    let mut block = [0; 1024];
    window.read_at(1024, &mut block).map_err(|error| error.to_string())?;
    let field = |at: usize| u64::from(u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]));
    let (blocks, in_group) = (field(0x4) | field(0x150) << 32, field(0x20));
    // The upper half counts only with the feature 64BIT.
    let blocks = if field(0x60) & 0x80 == 0 { blocks & u64::from(u32::MAX) } else { blocks };
    match in_group {
        1.. if blocks.div_ceil(in_group) <= MOST_GROUPS => Ok(()),
        _ => Err("an ext4 file system with impossible sizes".into()),
    }
}

/// Whether the sizes in a FAT boot sector fit each other and the partition: the crate's sums don't overflow then.
fn fat_is_sound(window: &Window) -> bool {
    let mut sector = [0; 512];
    if window.read_at(0, &mut sector).is_err() {
        return false;
    }
    let short = |at: usize| u64::from(u16::from_le_bytes([sector[at], sector[at + 1]]));
    let long = |at: usize| short(at) | short(at + 2) << 16;
    let either = |first: u64, second: u64| if first == 0 { second } else { first };
    let (bytes, reserved, copies) = (short(11), short(14), u64::from(sector[16]));
    let (sectors, table) = (either(short(19), long(32)), either(short(22), long(36)));
    let root = (short(17) * 32).div_ceil(bytes.max(1));
    [512, 1024, 2048, 4096].contains(&bytes)
        && sector[13].is_power_of_two()
        && (1..=2).contains(&copies)
        && table > 0
        && reserved + copies * table + root < sectors
        && sectors * bytes <= window.length
        // FAT32 only: the root directory's cluster, and the sector with counts.
        && (short(22) != 0 || (long(44) < sectors && short(48) < sectors))
}
