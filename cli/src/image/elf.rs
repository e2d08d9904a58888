//! ELF programs for AArch64.

use std::borrow::Cow;

use object::{
    Endianness,
    elf::{self, FileHeader64},
    read::elf::{FileHeader, ProgramHeader},
};
use stile_blob::MAX_LOADS;
use stile_board::map;

use super::{KernelError, Segment};

/// Maximum number of segments of a program: the blob's loads without the initial RAM file system and the
/// device tree.
const MAX_SEGMENTS: usize = MAX_LOADS - 2;

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
    /// Reads the program headers for a machine with `ram` bytes of RAM.
    pub fn parse(bytes: &[u8], ram: u64) -> Result<Self, KernelError> {
        check_machine(bytes)?;
        let malformed = |error: object::Error| KernelError::Malformed(format!("it is a broken ELF file: {error}"));
        let header = FileHeader64::<Endianness>::parse(bytes).map_err(malformed)?;
        let endian = header.endian().map_err(malformed)?;
        let program_headers = header.program_headers(endian, bytes).map_err(malformed)?;

        let entry = header.e_entry(endian);
        let mut entry_physical = None;
        let mut segments = Vec::new();
        for program_header in program_headers {
            let mem_len = program_header.p_memsz(endian);
            if program_header.p_type(endian) != elf::PT_LOAD || mem_len == 0 {
                continue;
            }
            let (offset, file_len) = program_header.file_range(endian);
            let file = usize::try_from(offset)
                .ok()
                .zip(usize::try_from(file_len).ok())
                .and_then(|(offset, len)| Some(offset..offset.checked_add(len)?))
                .filter(|range| bytes.get(range.clone()).is_some() && file_len <= mem_len)
                .ok_or_else(|| KernelError::Malformed("it is a broken ELF file: a segment is truncated".to_owned()))?;
            let gpa = program_header.p_paddr(endian);
            if !map::ram_contains(ram, gpa, mem_len) {
                return Err(KernelError::OutsideRam { needs: gpa..gpa.saturating_add(mem_len), ram });
            }
            // The MMU is off at start: a virtual entry address is translated to its load address.
            let into = entry.checked_sub(program_header.p_vaddr(endian)).filter(|&into| into < mem_len);
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
        let (segments, merged) = merge(bytes, segments);
        Ok(Self { entry, segments, merged })
    }
}

/// Merges the segments of a program that has too many, with zeros between them.
fn merge(bytes: &[u8], segments: Vec<Segment>) -> (Vec<Segment>, Option<Vec<u8>>) {
    let (Some(first), Some(last), true) = (segments.first(), segments.last(), segments.len() > MAX_SEGMENTS) else {
        return (segments, None);
    };
    let gpa = first.gpa;
    let mem_len = last.memory().end - gpa;
    let mut merged = Vec::new();
    for segment in &segments {
        if !segment.file.is_empty() {
            merged.resize((segment.gpa - gpa) as usize, 0);
            merged.extend_from_slice(&bytes[segment.file.clone()]);
        }
    }
    (vec![Segment { gpa, file: 0..merged.len(), mem_len }], Some(merged))
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
