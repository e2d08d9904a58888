//! Sections of a snapshot's file, each with a checksum, so that truncated and damaged files are recognized.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | kind, little-endian as all numbers |
//! | 4..8 | position among the sections, from 0 |
//! | 8..12 | length of the payload |
//! | 12..16 | CRC-32 (ISO-HDLC) of the twelve bytes before and the payload |
//! | 16.. | payload |
//!
//! The first section is [`Kind::Header`], the last is [`Kind::End`]; the others are in the order of [`Kind`], and
//! nothing follows the last.

use crc::{CRC_32_ISO_HDLC, Crc};
use serde::{Deserialize, Serialize};

/// Version of the format. Other versions are refused.
pub const VERSION: u32 = 5;

/// First bytes of [`Header`].
pub const MAGIC: [u8; 8] = *b"STILSNAP";

/// Length of a section without its payload.
pub const PREFIX: usize = 16;

static CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// The kind of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Kind {
    /// [`Header`]: once.
    Header = 0x5354_4c48,
    /// The virtual machine as the user sees it, for the command: once.
    Guest = 0x5354_4c49,
    /// Configuration and files (crate `blob`): once.
    Package = 0x5354_4c4a,
    /// A record of the virtual machine's state: one for each part.
    State = 0x5354_4c4b,
    /// A piece of RAM: its table, and its compressed pages.
    Memory = 0x5354_4c4c,
    /// [`End`]: once.
    End = 0x5354_4c4d,
}

/// Contents of [`Kind::Header`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// Architecture.
    pub arch: Arch,
    /// vCPUs.
    pub vcpus: u32,
    /// RAM in bytes.
    pub memory: u64,
    /// CRC-32 (ISO-HDLC) of the payload of [`Kind::Package`].
    pub config: u32,
}

/// Architecture of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arch {
    /// AArch64.
    Aarch64,
    /// x86-64.
    X86_64,
}

/// Contents of [`Kind::End`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Number of [`Kind::State`].
    pub states: u32,
    /// Number of [`Kind::Memory`].
    pub pieces: u32,
    /// Number of pages in them.
    pub pages: u64,
}

/// Reason for which a file is no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It does not begin as a snapshot.
    NoSnapshot,
    /// It has this other version.
    Version(u32),
    /// It ends early.
    Truncated,
    /// A checksum is wrong.
    Damaged,
    /// Checksums are right, but sections are missing, too many, or in disorder.
    Disorder,
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::NoSnapshot => f.write_str("it is not a snapshot of a VM"),
            Error::Version(version) => write!(f, "its format has version {version}, this command reads version {VERSION}"),
            Error::Truncated => f.write_str("it is truncated"),
            Error::Damaged => f.write_str("it is damaged: a checksum is wrong"),
            Error::Disorder => f.write_str("its sections are not those of a snapshot"),
        }
    }
}

impl core::error::Error for Error {}

impl Kind {
    /// The kind of this number.
    pub fn of(number: u32) -> Option<Kind> {
        [Kind::Header, Kind::Guest, Kind::Package, Kind::State, Kind::Memory, Kind::End].into_iter().find(|&kind| kind as u32 == number)
    }

    /// Most bytes of a payload.
    pub const fn longest(self) -> u32 {
        match self {
            Kind::Header | Kind::End => 64,
            Kind::State => crate::pages::WINDOW as u32,
            // Uncompressible pages grow by less than 1 in 128.
            Kind::Memory => crate::pages::WINDOW as u32 + 1024,
            Kind::Guest => 64 << 10,
            Kind::Package => u32::MAX,
        }
    }
}

/// The prefix of the section at `position`.
pub fn prefix(kind: Kind, position: u32, payload: &[u8]) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    prefix[..4].copy_from_slice(&(kind as u32).to_le_bytes());
    prefix[4..8].copy_from_slice(&position.to_le_bytes());
    prefix[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    let crc = checksum(&prefix, payload);
    prefix[12..].copy_from_slice(&crc.to_le_bytes());
    prefix
}

fn checksum(prefix: &[u8; PREFIX], payload: &[u8]) -> u32 {
    let mut crc = CRC.digest();
    crc.update(&prefix[..12]);
    crc.update(payload);
    crc.finalize()
}

/// CRC-32 (ISO-HDLC) of a package.
pub fn package_checksum(package: &[u8]) -> u32 {
    CRC.checksum(package)
}

/// Checks the order and checksums of a file's sections, which are given to it one after another.
#[derive(Debug, Default)]
pub struct Checker {
    position: u32,
    last: Option<Kind>,
    config: u32,
    counted: End,
}

impl Checker {
    /// Before the first section.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes the prefix of the next section: its kind, and the length of its payload.
    ///
    /// # Errors
    /// The section can't be there.
    pub fn begin(&self, prefix: &[u8; PREFIX]) -> Result<(Kind, u32), Error> {
        let word = |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
        let first = self.last.is_none();
        let kind = Kind::of(word(0)).ok_or(if first { Error::NoSnapshot } else { Error::Damaged })?;
        if first && kind != Kind::Header {
            return Err(Error::NoSnapshot);
        }
        if word(4) != self.position || word(8) > kind.longest() {
            return Err(Error::Damaged);
        }
        let follows = match (self.last, kind) {
            (None, Kind::Header)
            | (Some(Kind::Header), Kind::Guest)
            | (Some(Kind::Guest), Kind::Package)
            // A VM that is copied while it runs has its RAM first.
            | (Some(Kind::Package | Kind::State | Kind::Memory), Kind::State | Kind::Memory)
            | (Some(Kind::State | Kind::Memory), Kind::End) => true,
            (None | Some(_), _) => false,
        };
        if follows { Ok((kind, word(8))) } else { Err(Error::Disorder) }
    }

    /// Checks the section that [`begin`](Self::begin) accepted. `pages`: number of pages of a [`Kind::Memory`].
    ///
    /// # Errors
    /// Its checksum is wrong, or it contradicts others.
    pub fn end(&mut self, prefix: &[u8; PREFIX], payload: &[u8], pages: u64) -> Result<Kind, Error> {
        let (kind, length) = self.begin(prefix)?;
        let crc = u32::from_le_bytes([prefix[12], prefix[13], prefix[14], prefix[15]]);
        if payload.len() != length as usize || checksum(prefix, payload) != crc {
            return Err(Error::Damaged);
        }
        match kind {
            Kind::Header => {
                let header = decode_header(payload)?;
                self.config = header.config;
            }
            Kind::Package if package_checksum(payload) != self.config => return Err(Error::Disorder),
            Kind::State => self.counted.states += 1,
            Kind::Memory => {
                self.counted.pieces += 1;
                self.counted.pages += pages;
            }
            Kind::End if crate::decode::<End>(payload).as_ref() != Some(&self.counted) => return Err(Error::Disorder),
            Kind::Guest | Kind::Package | Kind::End => {}
        }
        self.position += 1;
        self.last = Some(kind);
        Ok(kind)
    }

    /// Whether the last section was [`Kind::End`].
    pub fn is_complete(&self) -> bool {
        self.last == Some(Kind::End)
    }
}

/// Decodes the payload of [`Kind::Header`].
///
/// # Errors
/// It is none, or has another version.
pub fn decode_header(payload: &[u8]) -> Result<Header, Error> {
    if !payload.starts_with(&MAGIC) {
        return Err(Error::NoSnapshot);
    }
    // Only magic and version keep their places in all versions.
    let (version, _) = postcard::take_from_bytes::<u32>(&payload[MAGIC.len()..]).map_err(|_| Error::NoSnapshot)?;
    if version != VERSION {
        return Err(Error::Version(version));
    }
    crate::decode(payload).ok_or(Error::Damaged)
}
