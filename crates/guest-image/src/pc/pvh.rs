//! Kernels with an entry point for PVH: an ELF note names it (Xen, "x86/HVM direct boot ABI" (docs/misc/pvh), and
//! xen/include/public/elfnote.h).

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::ops::Range;

use stile_blob::Mode;

use super::acpi;
use super::memory::{Memory, Size, memory};
use super::multiboot::{elf_file, program};
use super::parts::{INFO, INFO_LEN, Parts, check_places, place};
use crate::elf_file::{ElfFile, MAGIC as ELF};
use crate::{Format, Kernel, KernelError};

/// Name and type of the note, whose value is the entry point's physical address.
const OWNER: &[u8] = b"Xen";
const PHYS32_ENTRY: u32 = 18;
/// The magic number of the start information.
const MAGIC: u32 = 0x336e_c578;

/// The memory layout of a PVH kernel; `None` if `file` is not an ELF file with such a note.
///
/// # Errors
/// A PVH kernel that can't be started.
pub fn parts<'a>(
    file: &Cow<'a, [u8]>,
    size: Size<'_>,
    command_line: &str,
    initrd: Option<&[u8]>,
) -> Result<Option<Parts<'a>>, KernelError> {
    if !file.starts_with(&ELF) {
        return Ok(None);
    }
    let Ok(elf) = elf_file(file) else { return Ok(None) };
    let Some(entry) = entry(&elf) else { return Ok(None) };
    let (_, segments) = program(&elf)?;
    check_places(&segments, size.ram, INFO..INFO + INFO_LEN as u64)?;
    if !segments.iter().any(|segment| segment.memory().contains(&entry)) {
        return Err(KernelError::Entry(entry));
    }
    let end = segments.iter().map(|segment| segment.memory().end).max().unwrap_or(0);
    let initrd = initrd.map(|initrd| place(initrd.len() as u64, end, size.ram)).transpose()?;
    let info = information(size, command_line, initrd.as_ref());
    let kernel = Kernel { format: Format::Pvh, zboot: false, compression: None, entry, segments, size_known: true, contents: file.clone() };
    Ok(Some(Parts { kernel, initrd, more: Vec::new(), info, info_at: INFO, mode: Mode::Protected, acpi: acpi::Kind::Reduced }))
}

/// The entry point that a note names.
fn entry(file: &ElfFile<'_>) -> Option<u64> {
    let value = file.note(OWNER, PHYS32_ENTRY)?.first_chunk()?;
    Some(u32::from_le_bytes(*value).into())
}

/// The start information ("struct hvm_start_info", version 1), followed by the list of modules, the memory
/// map and the command line.
fn information(size: Size<'_>, command_line: &str, module: Option<&Range<u64>>) -> Vec<u8> {
    const HEADER: usize = 56;
    const MODULE: usize = 32;
    const MAP: usize = HEADER + MODULE;
    let map = memory(size);
    let text = MAP + 24 * map.len();
    let words = |at: usize| INFO + at as u64;
    let mut bytes = Vec::new();
    for word in [MAGIC, 1, 0, u32::from(module.is_some())] {
        bytes.extend(word.to_le_bytes());
    }
    for address in [words(HEADER), words(text), acpi::TABLES, words(MAP)] {
        bytes.extend(address.to_le_bytes());
    }
    bytes.extend((map.len() as u32).to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    let (start, end) = module.map_or((0, 0), |module| (module.start, module.end));
    for word in [start, end - start, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    for Memory { range, kind } in map {
        bytes.extend(range.start.to_le_bytes());
        bytes.extend((range.end - range.start).to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
    }
    // Truncated, with space for the NUL.
    bytes.extend(command_line.as_bytes().iter().take(INFO_LEN - bytes.len() - 1));
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::bytes::word;

    const RAM: u64 = 64 << 20;

    fn parts(file: &[u8], ram: u64, command_line: &str, initrd: Option<&[u8]>) -> Result<Option<Parts<'static>>, KernelError> {
        super::parts(&Cow::Owned(file.to_vec()), Size { ram, disks: &[] }, command_line, initrd)
    }

    /// A file of one segment at 1 MiB, and a note.
    fn file(owner: &[u8; 4], entry: u32) -> Vec<u8> {
        let mut file = vec![0; 0x1000];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[0x7f, b'E', b'L', b'F', 1, 1, 1]);
        put(16, &[2, 0, 3, 0, 1]);
        put(28, &52u32.to_le_bytes());
        put(40, &[52, 0, 32, 0, 2]);
        for (at, header) in [(52, [1, 0x800, 0x10_0000, 0x10_0000, 0x100, 0x200, 7, 0x1000u32]), (84, [4, 0x400, 0, 0, 20, 20, 4, 4])] {
            put(at, &header.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>());
        }
        put(0x400, &[4, 0, 0, 0, 4, 0, 0, 0, 18]);
        put(0x40c, owner);
        put(0x410, &entry.to_le_bytes());
        file
    }

    #[test]
    fn the_note_has_the_entry_point() {
        let parts = parts(&file(b"Xen\0", 0x10_0010), RAM, "one two", Some(&[1; 100])).unwrap().unwrap();
        assert_eq!((parts.kernel.entry, parts.kernel.segments.len(), parts.mode), (0x10_0010, 1, Mode::Protected));
        let at = |at: usize| word(&parts.info, at).unwrap();
        assert_eq!((at(0), at(4), at(12), at(32)), (MAGIC, 1, 1, acpi::TABLES as u32));
        let (module, line) = (at(16) as usize - INFO as usize, at(24) as usize - INFO as usize);
        assert_eq!((at(module), at(module + 8)), (parts.initrd.unwrap().start as u32, 100));
        assert_eq!(&parts.info[line..], b"one two\0");
        assert_eq!((at(40) as usize - INFO as usize, at(48)), (line - 3 * 24, 3));
    }

    #[test]
    fn a_file_without_the_note_is_not_pvh() {
        assert!(parts(b"no ELF file", RAM, "", None).unwrap().is_none());
        assert!(parts(&file(b"GNU\0", 0x10_0010), RAM, "", None).unwrap().is_none());
        assert!(parts(&file(b"Xen\0", 0x20_0000), RAM, "", None).is_err());
    }
}
