//! ELF programs for AArch64.

use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use stile_blob::MAX_LOADS;
use stile_board::map;
use stile_board::memory_disks::MAX_MEMORY_DISKS;

use super::elf_file::{ElfFile, PT_LOAD};
use super::{KernelError, Segment};

/// Maximum number of segments of a program: the blob's loads without the initial RAM file system and the
/// device tree.
const MAX_SEGMENTS: usize = MAX_LOADS - MAX_MEMORY_DISKS - 2;

/// The loadable part of an ELF file.
pub struct Program {
    /// Physical address of the entry point.
    pub entry: u64,
    /// The segments, sorted, without overlap.
    pub segments: Vec<Segment>,
    /// The bytes to which the segments' file ranges refer, if not to the file: see [`merge`].
    pub merged: Option<Vec<u8>>,
}

impl Program {
    /// Reads the program headers for a machine with `ram` bytes of RAM. `most`: how many bytes of merged segments may be
    /// allocated.
    pub fn parse(bytes: &[u8], ram: u64, most: u64) -> Result<Self, KernelError> {
        check_machine(bytes)?;
        let file = ElfFile::parse(bytes).map_err(|error| KernelError::Malformed(format!("it is a broken ELF file: {error}")))?;
        let entry = file.entry;
        let mut entry_physical = None;
        let mut segments = Vec::new();
        for header in file.segments {
            let mem_len = header.mem_len;
            if header.kind != PT_LOAD || mem_len == 0 {
                continue;
            }
            let file = header
                .file
                .filter(|_| header.file_len <= mem_len)
                .ok_or_else(|| KernelError::Malformed("it is a broken ELF file: a segment is truncated".to_owned()))?;
            let gpa = header.physical_address;
            if !map::ram_contains(ram, gpa, mem_len) {
                return Err(KernelError::OutsideRam { needs: gpa..gpa.saturating_add(mem_len), ram });
            }
            // The MMU is off at start: a virtual entry address is translated to its load address.
            let into = entry.checked_sub(header.virtual_address).filter(|&into| into < mem_len);
            if let (Some(into), None) = (into, entry_physical) {
                entry_physical = Some(gpa + into);
            }
            segments.push(Segment { gpa, file, mem_len });
        }
        if segments.is_empty() {
            return Err(KernelError::Malformed("it is an ELF file with nothing to load; expected a linked program".to_owned()));
        }
        segments.sort_by_key(|segment| segment.gpa);
        if let Some(pair) = segments.windows(2).find(|pair| pair[0].memory().end > pair[1].gpa) {
            let error = format!("it is a broken ELF file: two segments overlap at {:#x}", pair[1].gpa);
            return Err(KernelError::Malformed(error));
        }
        let physical = |entry: &u64| segments.iter().any(|segment| segment.memory().contains(entry));
        let entry = entry_physical.or(Some(entry).filter(physical)).filter(|entry| entry % 4 == 0).ok_or(KernelError::Entry(entry))?;
        let (segments, merged) = merge(bytes, segments, most)?;
        Ok(Self { entry, segments, merged })
    }
}

/// Merges the segments of a program that has too many, with zeros between them.
fn merge(bytes: &[u8], segments: Vec<Segment>, most: u64) -> Result<(Vec<Segment>, Option<Vec<u8>>), KernelError> {
    let (Some(first), Some(last), true) = (segments.first(), segments.last(), segments.len() > MAX_SEGMENTS) else {
        return Ok((segments, None));
    };
    let gpa = first.gpa;
    let mem_len = last.memory().end - gpa;
    if mem_len > most {
        return Err(KernelError::Malformed(format!("it has {} segments to load; expected 1 to {MAX_SEGMENTS}", segments.len())));
    }
    let mut merged = Vec::new();
    for segment in &segments {
        if !segment.file.is_empty() {
            merged.resize((segment.gpa - gpa) as usize, 0);
            merged.extend_from_slice(&bytes[segment.file.clone()]);
        }
    }
    Ok((vec![Segment { gpa, file: 0..merged.len(), mem_len }], Some(merged)))
}

/// Refuses ELF files of other architectures, before they are read as if they were of this one.
fn check_machine(bytes: &[u8]) -> Result<(), KernelError> {
    match machine(bytes) {
        None => Err(KernelError::Malformed("it is a broken ELF file: its header is truncated".to_owned())),
        Some(arch) if arch == AARCH64 => Ok(()),
        Some(arch) => Err(KernelError::Architecture { kind: "an ELF file", arch: arch.into_owned() }),
    }
}

/// Name of the architecture of this machine.
const AARCH64: &str = "AArch64";

/// The architecture of an ELF file; `None` if its header is truncated.
pub fn machine(bytes: &[u8]) -> Option<Cow<'static, str>> {
    let (&class, &data, machine) = (bytes.get(4)?, bytes.get(5)?, bytes.get(18..20)?);
    let machine = match data {
        1 => u16::from_le_bytes([machine[0], machine[1]]),
        _ => u16::from_be_bytes([machine[0], machine[1]]),
    };
    Some(Cow::Borrowed(match (machine, class, data) {
        (183, 2, 1) => AARCH64,
        (183, 2, _) => "big-endian AArch64",
        (183, ..) => "32-bit AArch64 (ILP32)",
        (3, ..) => "32-bit x86",
        (62, ..) => "x86-64",
        (40, ..) => "32-bit Arm",
        (243, ..) => "RISC-V",
        (258, ..) => "LoongArch",
        (20 | 21, ..) => "PowerPC",
        (22, ..) => "S/390",
        (8, ..) => "MIPS",
        (other, ..) => return Some(Cow::Owned(format!("another architecture (ELF machine {other})"))),
    }))
}
