//! Packages: the transfer format of virtual machines that are created at run time over the operator's line.

use crc::{CRC_32_ISO_HDLC, Crc};

use crate::format::OWN;
use crate::validate::{validate_load, validate_vm};
use crate::{Files, Rule, Vm};

const MAGIC: [u8; 8] = *b"STILEPKG";
const HEADER_LEN: usize = 16;
static CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// A validated package.
///
/// | bytes | content |
/// | --- | --- |
/// | 0..8 | `STILEPKG` |
/// | 8..12 | length of the configuration, little-endian |
/// | 12..16 | CRC-32 (ISO-HDLC) of the length and the configuration. Files are not covered: the line's [`Checksum`] covers all |
/// | 16.. | the configuration, a [`Vm`] in postcard's format |
/// | the rest | files, in any order, each aligned to [`FILE_ALIGN`](crate::FILE_ALIGN) from the package's start |
///
/// A package need not contain files of the machine's image: a [`Load::offset`](crate::Load::offset) below [`Package::OWN`] is
/// that of a file in the machine's blob.
#[derive(Clone, Debug)]
pub struct Package<'a> {
    /// The virtual machine.
    pub vm: Vm<'a>,
    /// Its files.
    pub files: Files<'a>,
}

/// Reason for refusing a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackageError {
    /// Not a package, truncated, or made for another version of Stile.
    Form,
    /// Wrong checksum.
    Checksum,
    /// The configuration violates this rule.
    Rule(Rule),
}

impl core::fmt::Display for PackageError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PackageError::Form => f.write_str("the VM's description can't be decoded: is the command of another version?"),
            PackageError::Checksum => f.write_str("the VM's description is incomplete or its checksum is wrong"),
            PackageError::Rule(rule) => write!(f, "the VM's description is invalid: {rule}"),
        }
    }
}

impl core::error::Error for PackageError {}

impl<'a> Package<'a> {
    /// [`Load::offset`](crate::Load::offset) of the package's first byte.
    pub const OWN: u64 = OWN;

    /// Parses a package for a machine whose blob has `image`'s files.
    ///
    /// # Errors
    /// [`PackageError`].
    pub fn parse(bytes: &'a [u8], image: Files<'a>) -> Result<Self, PackageError> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(PackageError::Form)?;
        let [.., l0, l1, l2, l3, c0, c1, c2, c3] = *header;
        if !header.starts_with(&MAGIC) {
            return Err(PackageError::Form);
        }
        let length = [l0, l1, l2, l3];
        let config = rest.get(..u32::from_le_bytes(length) as usize).ok_or(PackageError::Form)?;
        if checksum(length, config) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(PackageError::Checksum);
        }
        let length = config.len();
        let (vm, more) = postcard::take_from_bytes::<Vm<'a>>(config).map_err(|_| PackageError::Form)?;
        if !more.is_empty() {
            return Err(PackageError::Form);
        }
        validate_vm(&vm).map_err(PackageError::Rule)?;
        for load in &vm.loads {
            let (offset, from, end) = match load.offset.checked_sub(Self::OWN) {
                Some(offset) => (offset, (HEADER_LEN + length) as u64, bytes.len() as u64),
                // The image's header and configuration are no secrets from its operator.
                None => (load.offset, 0, image.image.len() as u64),
            };
            validate_load(&crate::Load { offset, ..*load }, &vm, from, end).map_err(PackageError::Rule)?;
        }
        Ok(Self { vm, files: Files { image: image.image, package: bytes, medium: &[] } })
    }
}

fn checksum(length: [u8; 4], config: &[u8]) -> u32 {
    let mut checksum = Checksum::new();
    checksum.update(&length);
    checksum.update(config);
    checksum.finish()
}

/// Incremental CRC-32 (ISO-HDLC).
#[derive(Clone)]
pub struct Checksum(crc::Digest<'static, u32>);

impl Checksum {
    /// Checksum of no bytes.
    pub fn new() -> Checksum {
        Checksum(CRC.digest())
    }

    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum.
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }
}

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}

/// Encodes a package of `vm` with `files` appended to its loads, whichever virtual machine they name. `find` returns
/// the offset of a file that the machine's blob has.
///
/// # Errors
/// Any error of [`Package::parse`]; [`PackageError::Form`] also if there are too many files.
#[cfg(any(test, feature = "write"))]
pub fn write(
    vm: &Vm<'_>,
    files: &[crate::write::File<'_>],
    find: impl Fn(&[u8]) -> Option<u64>,
) -> Result<alloc::vec::Vec<u8>, PackageError> {
    use alloc::vec::Vec;

    use crate::{FILE_ALIGN, Load};

    let places: Vec<Option<u64>> = files.iter().map(|file| find(file.bytes)).collect();
    // Offsets depend on the configuration's length, and that on their encoding: the offsets of a package have a fixed encoded length.
    let encode = |first: u64| {
        let mut vm = vm.clone();
        let mut at = first;
        for (file, place) in files.iter().zip(&places) {
            let len = file.bytes.len() as u64;
            let offset = place.unwrap_or(Package::OWN + at);
            if place.is_none() {
                at = (at + len).next_multiple_of(FILE_ALIGN);
            }
            vm.loads.push(Load { offset, len, gpa: file.gpa, mem_len: file.mem_len }).map_err(|_| PackageError::Form)?;
        }
        postcard::to_allocvec(&vm).map_err(|_| PackageError::Form)
    };
    let first = (HEADER_LEN as u64 + encode(0)?.len() as u64).next_multiple_of(FILE_ALIGN);
    let config = encode(first)?;
    let mut rest = config.clone();
    for (file, place) in files.iter().zip(&places) {
        if place.is_none() {
            rest.resize((HEADER_LEN + rest.len()).next_multiple_of(FILE_ALIGN as usize) - HEADER_LEN, 0);
            rest.extend_from_slice(file.bytes);
        }
    }
    let length = (config.len() as u32).to_le_bytes();
    let mut package = Vec::from(MAGIC);
    package.extend_from_slice(&length);
    package.extend_from_slice(&checksum(length, &config).to_le_bytes());
    package.append(&mut rest);
    Ok(package)
}
