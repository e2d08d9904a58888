//! Kernels: formats, recognized by content, and the memory layout of their segments.

use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use stile_board::map;
use stile_config::units;

use super::bytes::{double_word, word};
use super::file_type::{self, FileType};
use super::{Compression, KernelError, Segment, elf, elf_file, pe};

/// Maximum size of an unpacked kernel in bytes: a larger file is a decompression bomb.
pub const UNPACK_LIMIT: u64 = 1 << 30;

/// Unpacks bytes to at most a number of others.
pub type Unpack = fn(Compression, &[u8], u64) -> Result<Vec<u8>, KernelError>;

/// The unpacking of compressed kernels, which not every user of this crate has.
#[derive(Clone, Copy, Debug)]
pub struct Unpacking {
    /// Unpacks bytes to at most a number of others. Bytes behind the compressed stream are ignored, or an error: the
    /// [unpacker at boot](super::gunzip::unpack) finds the size at their end.
    pub function: Unpack,
    /// Most bytes of an unpacked kernel.
    pub most: u64,
    /// Most bytes that may be allocated to merge a program's segments.
    pub most_merged: u64,
}

impl Unpacking {
    /// Unpacks compressed bytes.
    ///
    /// # Errors
    /// They are corrupt or too many, or this compression is not supported.
    pub fn unpack(&self, compression: Compression, bytes: &[u8]) -> Result<Vec<u8>, KernelError> {
        (self.function)(compression, bytes, self.most)
    }
}

/// The format of a kernel's file after unpacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// An arm64 Linux `Image` ("Booting AArch64 Linux", "Call the kernel image").
    Image,
    /// An ELF program for AArch64.
    Elf,
    /// A Linux `bzImage` for x86-64 ("The Linux/x86 Boot Protocol").
    BzImage,
    /// A program with a Multiboot header ("Multiboot Specification", 0.6.96), for x86.
    Multiboot,
    /// A program with an entry point for PVH, for x86.
    Pvh,
    /// UEFI firmware that executes in place: a firmware volume ("UEFI Platform Initialization Specification", volume 3).
    Firmware,
    /// None of those: a memory image, entered at its first byte.
    Flat,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Image => "arm64 Image",
            Format::Elf => "ELF",
            Format::BzImage => "x86 bzImage",
            Format::Multiboot => "Multiboot",
            Format::Pvh => "PVH",
            Format::Firmware => "UEFI firmware",
            Format::Flat => "flat binary",
        })
    }
}

/// A kernel ready to be loaded.
#[derive(Clone, Debug)]
pub struct Kernel<'a> {
    /// Its format.
    pub format: Format,
    /// Whether the file is an EFI zboot wrapper.
    pub zboot: bool,
    /// Its compression.
    pub compression: Option<Compression>,
    /// Entry point: a guest-physical address.
    pub entry: u64,
    /// Its parts: at least one, in the order of their addresses.
    pub segments: Vec<Segment>,
    /// Whether its segments are all the memory that it uses before it learns the memory map.
    pub size_known: bool,
    /// The unpacked file.
    pub(super) contents: Cow<'a, [u8]>,
}

impl<'a> Kernel<'a> {
    /// Recognizes a kernel for an Arm virtual machine with `ram` bytes of RAM, unpacking it if it is compressed.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub fn recognise(file: &'a [u8], ram: u64, unpacking: &Unpacking) -> Result<Self, KernelError> {
        if file.is_empty() {
            return Err(KernelError::Empty);
        }
        let (payload, zboot) = match zboot_payload(file)? {
            Some(payload) => (payload, true),
            None => (file, false),
        };
        let compression = Compression::of(payload).map_err(|name| KernelError::UnknownCompression(name.to_owned()))?;
        let contents = match compression {
            Some(compression) => Cow::Owned(unpacking.unpack(compression, payload)?),
            None => Cow::Borrowed(payload),
        };
        if contents.is_empty() {
            return Err(KernelError::Empty);
        }
        if contents.starts_with(&elf_file::MAGIC) {
            let program = elf::Program::parse(&contents, ram, unpacking.most_merged)?;
            return Ok(Self {
                format: Format::Elf,
                zboot,
                compression,
                entry: program.entry,
                segments: program.segments,
                size_known: true,
                contents: program.merged.map_or(contents, Cow::Owned),
            });
        }
        if let Some(volume) = firmware_volume(&contents) {
            return Self::firmware(contents, compression, volume);
        }
        if is_volume(&contents, 0) {
            return Err(KernelError::Architecture { kind: "UEFI firmware", arch: "another architecture".to_owned() });
        }
        let header = ImageHeader::parse(&contents)?;
        if header.is_none() {
            refuse_known(&contents)?;
        }
        if header.is_some() {
            check_whole(&contents, pe::end(&contents))?;
        }
        let (format, offset, len) = match header {
            Some(header) => (Format::Image, header.text_offset, header.image_size),
            None => (Format::Flat, map::FLAT_OFFSET, 0),
        };
        let file_len = contents.len() as u64;
        let gpa = map::RAM_BASE.saturating_add(offset);
        let segment = Segment { gpa, file: 0..contents.len(), mem_len: len.max(file_len) };
        if !map::ram_contains(ram, gpa, segment.mem_len) {
            let needs = gpa..gpa.saturating_add(segment.mem_len);
            return Err(KernelError::OutsideRam { needs, ram });
        }
        Ok(Self { format, zboot, compression, entry: gpa, segments: vec![segment], size_known: len != 0, contents })
    }

    /// Firmware, which starts at the first instruction of its file. Images for QEMU are padded to the size of its flash.
    fn firmware(mut contents: Cow<'a, [u8]>, compression: Option<Compression>, volume: Range<usize>) -> Result<Self, KernelError> {
        let filling = contents.iter().rev().take_while(|&&byte| byte == 0 || byte == 0xff).count();
        // A volume may have room at its end.
        let whole = volume.end.max(contents.len() - filling).next_multiple_of(map::RAM_GRANULE as usize);
        match &mut contents {
            Cow::Borrowed(bytes) => *bytes = bytes.get(..whole).unwrap_or(bytes),
            Cow::Owned(bytes) => bytes.truncate(whole),
        }
        let mem_len = whole as u64;
        if mem_len > map::FIRMWARE_MAX {
            return Err(KernelError::Malformed(format!(
                "it is firmware of {}; expected at most {}",
                units::size(mem_len),
                units::size(map::FIRMWARE_MAX)
            )));
        }
        let segment = Segment { gpa: map::FIRMWARE_BASE, file: 0..contents.len(), mem_len };
        let format = Format::Firmware;
        Ok(Self { format, zboot: false, compression, entry: map::FIRMWARE_BASE, segments: vec![segment], size_known: true, contents })
    }

    /// Size in bytes of the memory for firmware; 0 for other kernels.
    pub fn firmware_size(&self) -> u64 {
        if self.format == Format::Firmware { self.segments.iter().map(|segment| segment.mem_len).sum() } else { 0 }
    }

    /// Checks that Xen can start a domain with this kernel: an `Image`, which may be compressed with gzip.
    ///
    /// # Errors
    /// See [`KernelError`].
    pub fn check_domain(file: &[u8], unpacking: &Unpacking) -> Result<(), KernelError> {
        if file.is_empty() {
            return Err(KernelError::Empty);
        }
        let unpacked = match Compression::of(file) {
            Ok(None) => None,
            Ok(Some(Compression::Gzip)) => Some(unpacking.unpack(Compression::Gzip, file)?),
            Ok(Some(other)) => return Err(KernelError::NotForXen(format!("compressed with {other}"))),
            Err(name) => return Err(KernelError::NotForXen(format!("compressed with {name}"))),
        };
        let contents = unpacked.as_deref().unwrap_or(file);
        match ImageHeader::parse(contents)? {
            Some(_) => check_whole(contents, pe::end(contents)),
            None if contents.starts_with(&elf_file::MAGIC) => Err(KernelError::NotForXen("an ELF program".to_owned())),
            None => {
                Err(KernelError::NotForXen(FileType::of(contents).map_or("a file without an Image header", |kind| kind.name).to_owned()))
            }
        }
    }

    /// The kernel with its contents copied, if they are borrowed.
    pub fn into_owned(self) -> Kernel<'static> {
        Kernel {
            format: self.format,
            zboot: self.zboot,
            compression: self.compression,
            entry: self.entry,
            segments: self.segments,
            size_known: self.size_known,
            contents: Cow::Owned(self.contents.into_owned()),
        }
    }

    /// Contents of a segment.
    pub fn bytes(&self, segment: &Segment) -> &[u8] {
        self.contents.get(segment.file.clone()).unwrap_or_default()
    }

    /// The length of the unpacked file.
    pub fn len(&self) -> usize {
        self.contents.len()
    }

    /// Never true: an empty file is not a kernel.
    pub fn is_empty(&self) -> bool {
        self.contents.is_empty()
    }

    /// A short description.
    pub fn about(&self) -> String {
        let mut about = self.format.to_string();
        if let Some(compression) = self.compression {
            about += &format!(", {compression}");
        }
        if self.zboot {
            about += ", EFI zboot";
        }
        about
    }
}

/// Rejects a file shorter than its header says.
pub(super) fn check_whole(file: &[u8], expected: Option<u64>) -> Result<(), KernelError> {
    let len = file.len() as u64;
    match expected {
        Some(expected) if expected > len => Err(KernelError::Malformed(format!("it is truncated: it has {len} of {expected} bytes"))),
        _ => Ok(()),
    }
}

/// Whether a firmware volume begins at an offset: EFI_FIRMWARE_VOLUME_HEADER.Signature.
fn is_volume(bytes: &[u8], start: usize) -> bool {
    bytes.get(start + 40..start + 44) == Some(b"_FVH")
}

/// The first volume of AArch64 UEFI firmware, if the file is such: at its beginning, in the header's zero vector, or in a
/// page before the volume, is a branch (`B`), as in EDK2's builds for execution at address 0.
pub(super) fn firmware_volume(bytes: &[u8]) -> Option<Range<usize>> {
    word(bytes, 0).filter(|first| first >> 26 == 0b000101)?;
    let start = [0, 4096].into_iter().find(|&start| is_volume(bytes, start))?;
    // EFI_FIRMWARE_VOLUME_HEADER.FvLength
    let length = double_word(bytes, start + 32)?;
    Some(start..(start as u64).saturating_add(length).min(bytes.len() as u64) as usize)
}

/// The header of an arm64 `Image`.
struct ImageHeader {
    /// Offset of the kernel in a 2 MiB block of RAM.
    text_offset: u64,
    /// Size in memory from there; 0 if unknown.
    image_size: u64,
}

impl ImageHeader {
    fn parse(bytes: &[u8]) -> Result<Option<Self>, KernelError> {
        if bytes.get(56..60) != Some(b"ARM\x64") {
            return Ok(None);
        }
        let malformed = || KernelError::Malformed("its Image header is truncated".to_owned());
        let text_offset = double_word(bytes, 8).ok_or_else(malformed)?;
        let image_size = double_word(bytes, 16).ok_or_else(malformed)?;
        let flags = double_word(bytes, 24).ok_or_else(malformed)?;
        if flags & 1 != 0 {
            return Err(KernelError::BigEndian);
        }
        if text_offset % 4096 != 0 {
            let error = format!("its Image header requires the offset {text_offset:#x} in RAM, which is not page-aligned");
            return Err(KernelError::Malformed(error));
        }
        // Kernels before 3.17 leave both out; the offset was always this one then.
        Ok(Some(match image_size {
            0 => Self { text_offset: 0x8_0000, image_size: 0 },
            _ => Self { text_offset, image_size },
        }))
    }
}

/// The payload of an EFI zboot wrapper (`CONFIG_EFI_ZBOOT`), if this is one.
pub(super) fn zboot_payload(bytes: &[u8]) -> Result<Option<&[u8]>, KernelError> {
    if !bytes.starts_with(b"MZ") || bytes.get(4..8) != Some(b"zimg") {
        return Ok(None);
    }
    let malformed = || KernelError::Malformed("its EFI zboot header is truncated".to_owned());
    let offset = word(bytes, 8).ok_or_else(malformed)? as usize;
    let len = word(bytes, 12).ok_or_else(malformed)? as usize;
    let name = bytes.get(24..56).ok_or_else(malformed)?;
    let payload = bytes.get(offset..).and_then(|rest| rest.get(..len));
    let payload = payload.ok_or_else(|| KernelError::Malformed("its EFI zboot payload is truncated".to_owned()))?;
    // The header names the compression of an unsupported payload.
    if Compression::of(payload) == Ok(None) {
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        return Err(KernelError::UnknownCompression(String::from_utf8_lossy(name).escape_debug().to_string()));
    }
    Ok(Some(payload))
}

/// Rejects files that are certainly not a flat binary for this machine.
fn refuse_known(bytes: &[u8]) -> Result<(), KernelError> {
    if let Some(arch) = file_type::linux_arch(bytes) {
        return Err(KernelError::Architecture { kind: "a Linux image", arch: arch.to_owned() });
    }
    match FileType::of(bytes) {
        Some(FileType { name, advice: Some(advice) }) => Err(KernelError::Disk { name, advice }),
        Some(FileType { name, advice: None }) => Err(KernelError::NoKernel(name)),
        None => Ok(()),
    }
}
