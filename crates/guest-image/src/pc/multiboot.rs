//! Multiboot programs (Multiboot Specification 0.6.96).

use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use stile_blob::{MAX_LOADS, Mode};
use stile_board::memory_disks::MAX_MEMORY_DISKS;

use super::acpi;
use super::memory::{HIGH_MEMORY, Memory, RESERVED, Size, lowest, memory};
use super::parts::{Domain, INFO_LEN, Parts, check_places, meets, place};
use crate::bytes::word;
use crate::elf_file::{EM_386, EM_X86_64, ElfFile, MAGIC, PT_LOAD};
use crate::{Format, Kernel, KernelError, Segment};

/// A Multiboot header's magic number, in the file's byte order.
pub const MULTIBOOT_MAGIC: [u8; 4] = 0x1bad_b002u32.to_le_bytes();
/// A Multiboot header lies within this many bytes from the file's start.
const SEARCHED: usize = 8192;
/// Bit of a Multiboot header's flags: it contains load addresses.
const HAS_ADDRESSES: u32 = 1 << 16;
/// Maximum number of segments of a program.
const MAX_SEGMENTS: usize = MAX_LOADS - MAX_MEMORY_DISKS - 5;

/// The memory layout of a Multiboot program; `None` if `file` is not one.
///
/// # Errors
/// A Multiboot program that can't be started.
pub fn parts<'a>(
    file: &Cow<'a, [u8]>,
    size: Size<'_>,
    command_line: &str,
    domain: Option<&Domain<'a, '_>>,
    initrd: Option<&[u8]>,
) -> Result<Option<Parts<'a>>, KernelError> {
    let Some(header) = multiboot_header(file) else { return Ok(None) };
    let ram = size.ram;
    let kernel = recognise(file, header)?;
    let info_at = information_place(&kernel.segments);
    check_places(&kernel.segments, ram, info_at..info_at + INFO_LEN as u64)?;
    let end = kernel.segments.iter().map(|segment| segment.memory().end).max().unwrap_or(0);
    let initrd = initrd.map(|initrd| place(initrd.len() as u64, end, ram)).transpose()?;
    let below = initrd.as_ref().map_or(ram, |initrd| initrd.start);
    let domain_at = domain.map(|domain| place(domain.kernel.len() as u64, end, below)).transpose()?;
    let modules: Vec<_> = domain_at.iter().chain(&initrd).zip(domain.map(|domain| domain.bootargs).into_iter().chain([""])).collect();
    let info = information(info_at, size, command_line, &modules);
    let more = domain_at.zip(domain).map(|(at, domain)| (at.start, Cow::Borrowed(domain.kernel))).into_iter().collect();
    Ok(Some(Parts { kernel, initrd, more, info, info_at, mode: Mode::Protected, acpi: acpi::Kind::Whole }))
}

/// Programs put their own tables, and code for other CPUs, low in memory before they read the boot
/// information. So it is placed as high below 640 KiB as the program permits.
fn information_place(segments: &[Segment]) -> u64 {
    const PAGE: u64 = 4096;
    const LEAST: u64 = 0x1000;
    let highest = (RESERVED - INFO_LEN as u64) & !(PAGE - 1);
    let is_free = |at: &u64| !segments.iter().any(|segment| meets(&segment.memory(), &(*at..at + INFO_LEN as u64)));
    (LEAST..=highest).rev().step_by(PAGE as usize).find(is_free).unwrap_or(highest)
}

fn recognise<'a>(file: &Cow<'a, [u8]>, header: usize) -> Result<Kernel<'a>, KernelError> {
    // Addresses in the header take precedence, even in an ELF file ("Multiboot header", "flags").
    let has_addresses = word(file, header + 4).is_some_and(|flags| flags & HAS_ADDRESSES != 0);
    let (entry, segments) = match file.get(4) {
        _ if has_addresses => flat(file, header)?,
        Some(1 | 2) if file.starts_with(&MAGIC) => program(&elf_file(file)?)?,
        _ => flat(file, header)?,
    };
    if !segments.iter().any(|segment| segment.memory().contains(&entry)) {
        return Err(KernelError::Entry(entry));
    }
    Ok(Kernel { format: Format::Multiboot, zboot: false, compression: None, entry, segments, size_known: true, contents: file.clone() })
}

/// Offset of the Multiboot header in the file.
fn multiboot_header(file: &[u8]) -> Option<usize> {
    (0..file.len().min(SEARCHED)).step_by(4).find(|&at| {
        let words = (word(file, at), word(file, at + 4), word(file, at + 8));
        matches!(words, (Some(magic), Some(flags), Some(sum))
            if magic.to_le_bytes() == MULTIBOOT_MAGIC && magic.wrapping_add(flags).wrapping_add(sum) == 0)
    })
}

/// The headers of an ELF file.
pub fn elf_file(file: &[u8]) -> Result<ElfFile<'_>, KernelError> {
    ElfFile::parse(file).map_err(|error| KernelError::Malformed(format!("it is a broken ELF file: {error}")))
}

/// The loadable part of an ELF file. Segments and entry point are at physical addresses.
pub fn program(file: &ElfFile<'_>) -> Result<(u64, Vec<Segment>), KernelError> {
    let machine = file.machine;
    if !matches!(machine, EM_386 | EM_X86_64) {
        return Err(KernelError::Malformed(format!("it is an ELF file for another architecture (ELF machine {machine}), not x86")));
    }
    let entry = file.entry;
    let mut physical_entry = entry;
    let mut segments = Vec::new();
    for header in &file.segments {
        let mem_len = header.mem_len;
        if header.kind != PT_LOAD || mem_len == 0 {
            continue;
        }
        let range = header
            .file
            .clone()
            .filter(|_| header.file_len <= mem_len)
            .ok_or_else(|| KernelError::Malformed("it is a broken ELF file: a segment is truncated".to_owned()))?;
        let (gpa, va) = (header.physical_address, header.virtual_address);
        if let Some(into) = entry.checked_sub(va).filter(|&into| into < mem_len) {
            physical_entry = gpa.wrapping_add(into);
        }
        if gpa.checked_add(mem_len).is_none() {
            return Err(KernelError::Malformed("it is a broken ELF file: a segment is too long".to_owned()));
        }
        segments.push(Segment { gpa, file: range, mem_len });
    }
    segments.sort_by_key(|segment| segment.gpa);
    if segments.is_empty() || segments.len() > MAX_SEGMENTS {
        return Err(KernelError::Malformed(format!("it has {} segments to load; expected 1 to {MAX_SEGMENTS}", segments.len())));
    }
    if let Some(pair) = segments.windows(2).find(|pair| pair[0].memory().end > pair[1].gpa) {
        return Err(KernelError::Malformed(format!("it is a broken ELF file: two segments overlap at {:#x}", pair[1].gpa)));
    }
    Ok((physical_entry, segments))
}

/// The loadable part of a file that is not ELF, according to its header.
fn flat(file: &[u8], header: usize) -> Result<(u64, Vec<Segment>), KernelError> {
    let field = |n: usize| word(file, header + 4 * n).map(u64::from);
    let malformed = || KernelError::Malformed("its Multiboot header is truncated or inconsistent".to_owned());
    if field(1).is_none_or(|flags| flags as u32 & HAS_ADDRESSES == 0) {
        return Err(KernelError::Malformed("it is no ELF file, and its Multiboot header has no addresses".to_owned()));
    }
    let fields = (field(3), field(4), field(5), field(6), field(7));
    let (Some(at), Some(load), Some(load_end), Some(zeroed_end), Some(entry)) = fields else { return Err(malformed()) };
    // The header determines the load address of the file's first byte.
    let start = (header as u64).checked_sub(at.checked_sub(load).ok_or_else(malformed)?).ok_or_else(malformed)? as usize;
    let len = match load_end {
        0 => file.len() - start,
        end => usize::try_from(end.checked_sub(load).ok_or_else(malformed)?).map_err(|_| malformed())?,
    };
    let range: Range<usize> = start..start.checked_add(len).filter(|&end| end <= file.len()).ok_or_else(malformed)?;
    let mem_len = zeroed_end.saturating_sub(load).max(len as u64);
    Ok((entry, vec![Segment { gpa: load, file: range, mem_len }]))
}

/// The boot information ("Boot information format"): amounts of memory, a memory map, the command line, and modules with their command
/// lines.
fn information(at: u64, size: Size<'_>, command_line: &str, modules: &[(&Range<u64>, &str)]) -> Vec<u8> {
    const MEMORY: u32 = 1 << 0;
    const COMMAND_LINE: u32 = 1 << 2;
    const MODULES: u32 = 1 << 3;
    const MAP: u32 = 1 << 6;
    const LOADER_NAME: u32 = 1 << 9;
    const HEADER: usize = 128;
    const MODULE_LINE: usize = 4096;
    /// The bytes after the header.
    const NAME: &[u8; 8] = b"Stile\0\0\0";
    let start = at as usize;
    let mut after = NAME.to_vec();
    let lines: Vec<_> = modules
        .iter()
        .map(|(_, line)| {
            let at = start + HEADER + after.len();
            // Truncated, with space for what follows.
            after.extend(line.as_bytes().iter().take(MODULE_LINE));
            after.push(0);
            at as u32
        })
        .collect();
    after.resize(after.len().next_multiple_of(4), 0);
    let list = HEADER + after.len();
    for ((module, _), line) in modules.iter().zip(lines) {
        after.extend([module.start as u32, module.end as u32, line, 0].iter().flat_map(|word| word.to_le_bytes()));
    }
    let map_at = HEADER + after.len();
    for Memory { range, kind } in memory(size) {
        after.extend(20u32.to_le_bytes());
        after.extend(range.start.to_le_bytes());
        after.extend((range.end - range.start).to_le_bytes());
        after.extend(kind.to_le_bytes());
    }
    let text = HEADER + after.len();
    let mut bytes = vec![0; HEADER];
    let mut put = |at: usize, value: usize| bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
    let flags = MEMORY | COMMAND_LINE | MAP | LOADER_NAME | if modules.is_empty() { 0 } else { MODULES };
    put(0, flags as usize);
    put(4, (RESERVED.min(size.ram) >> 10) as usize);
    put(8, (lowest(size.ram).saturating_sub(HIGH_MEMORY) >> 10) as usize);
    put(16, start + text);
    put(20, modules.len());
    put(24, start + list);
    put(44, text - map_at);
    put(48, start + map_at);
    put(64, start + HEADER);
    bytes.extend(after);
    // Truncated, with space for the NUL.
    bytes.extend(command_line.as_bytes().iter().take(INFO_LEN - bytes.len() - 1));
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    const RAM: u64 = 16 << 20;
    const INFO: u64 = 0x9_7000;

    fn size(ram: u64) -> Size<'static> {
        Size { ram, disks: &[] }
    }

    fn parts(
        file: &[u8],
        ram: u64,
        line: &str,
        domain: Option<&Domain<'static, '_>>,
        initrd: Option<&[u8]>,
    ) -> Result<Option<Parts<'static>>, KernelError> {
        super::parts(&Cow::Owned(file.to_vec()), size(ram), line, domain, initrd)
    }

    fn header(flags: u32) -> Vec<u8> {
        let magic = u32::from_le_bytes(MULTIBOOT_MAGIC);
        [magic, flags, 0u32.wrapping_sub(magic).wrapping_sub(flags)].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn flat_file(at: u32, load: u32, load_end: u32, entry: u32) -> Vec<u8> {
        let mut file = header(HAS_ADDRESSES);
        file.extend([at, load, load_end, 0, entry].iter().flat_map(|word| word.to_le_bytes()));
        file.resize(0x400, 0x90);
        file
    }

    #[test]
    fn a_flat_kernels_header_determines_its_address() {
        let kernel = parts(&flat_file(0x10_0000, 0x10_0000, 0, 0x10_0020), RAM, "", None, None).unwrap().unwrap().kernel;
        assert_eq!((kernel.entry, kernel.segments.len()), (0x10_0020, 1));
        assert_eq!(kernel.segments[0].memory(), 0x10_0000..0x10_0400);
        assert_eq!(kernel.about(), "Multiboot");
    }

    #[test]
    fn misplaced_programs_are_refused() {
        let refusal = |file: &[u8]| parts(file, RAM, "", None, None).err().expect("no kernel").to_string();
        assert!(parts(b"no header", RAM, "", None, None).unwrap().is_none());
        assert!(refusal(&flat_file(0x200_0000, 0x200_0000, 0, 0x200_0020)).contains("RAM ends at"));
        assert!(refusal(&flat_file(0x400, 0x400, 0, 0x420)).contains("boot information"));
        assert!(refusal(&flat_file(0x9_fb00, 0x9_fb00, 0, 0x9_fb20)).contains("boot information"));
        assert!(refusal(&flat_file(0x10_0000, 0x10_0000, 0, 0x20_0000)).contains("entry point"));
        assert!(refusal(&flat_file(0x10_0000, 0x20_0000, 0, 0x20_0000)).contains("inconsistent"));
        assert!(refusal(&header(0)).contains("no addresses"));
    }

    #[test]
    fn the_boot_information_does_not_overlap_the_program() {
        let place = |load: u32| parts(&flat_file(load, load, 0, load + 0x20), RAM, "", None, None).unwrap().unwrap().info_at;
        assert_eq!((place(0x10_0000), place(0x7c00), place(0x4000)), (0x9_7000, 0x9_7000, 0x9_7000));
        // Above the program, or below it.
        assert_eq!((place(0x9_6f00), place(0x9_8000)), (0x8_e000, 0x9_0000));
    }

    #[test]
    fn addresses_in_the_header_take_precedence_over_elf() {
        let mut file = header(HAS_ADDRESSES);
        file.extend([0x10_0040u32, 0x10_0000, 0, 0x10_2000, 0x10_0080].iter().flat_map(|word| word.to_le_bytes()));
        // The ELF header's contents, or their absence, don't matter.
        let mut elf = [MAGIC.as_slice(), &[1, 1, 1]].concat();
        elf.resize(0x40, 0);
        elf.extend(file);
        elf.resize(0x400, 0x90);
        let kernel = parts(&elf, RAM, "", None, None).unwrap().unwrap().kernel;
        assert_eq!(
            (kernel.entry, kernel.segments[0].file.clone(), kernel.segments[0].memory()),
            (0x10_0080, 0..0x400, 0x10_0000..0x10_2000)
        );
    }

    #[test]
    fn the_guest_gets_its_memory_map_and_command_line() {
        let info = information(INFO, size(RAM), "one two", &[]);
        assert_eq!(word(&info, 0), Some(0b10_0100_0101));
        assert_eq!((word(&info, 4), word(&info, 8)), (Some(639), Some(15 << 10)));
        let text = word(&info, 16).unwrap() as usize - INFO as usize;
        assert_eq!(&info[text..], b"one two\0");
        let map = word(&info, 48).unwrap() as usize - INFO as usize;
        assert_eq!(word(&info, 44), Some(3 * 24));
        assert_eq!((word(&info, map + 48), word(&info, map + 52)), (Some(20), Some(1 << 20)));
        assert!(information(INFO, size(RAM), &"x".repeat(1 << 20), &[]).len() <= INFO_LEN);
    }

    #[test]
    fn the_initial_file_system_is_a_module() {
        let file = flat_file(0x10_0000, 0x10_0000, 0, 0x10_0020);
        let parts = parts(&file, RAM, "", None, Some(&[7; 5000])).unwrap().unwrap();
        assert_eq!(parts.initrd, Some(RAM - 8192..RAM - 8192 + 5000));
        assert_eq!((word(&parts.info, 0).unwrap() & 1 << 3, word(&parts.info, 20)), (1 << 3, Some(1)));
        let module = word(&parts.info, 24).unwrap() as usize - INFO as usize;
        assert_eq!(
            (word(&parts.info, module), word(&parts.info, module + 4)),
            (Some((RAM - 8192) as u32), Some((RAM - 8192) as u32 + 5000))
        );
        let line = word(&parts.info, module + 8).unwrap() as usize - INFO as usize;
        assert_eq!(parts.info[line], 0);
    }
    #[test]
    fn a_domains_kernel_is_the_first_module() {
        let file = flat_file(0x10_0000, 0x10_0000, 0, 0x10_0020);
        let domain = Domain { kernel: &[1; 3000], bootargs: "console=hvc0" };
        let parts = parts(&file, RAM, "", Some(&domain), Some(&[7; 5000])).unwrap().unwrap();
        assert_eq!(parts.more, [(RAM - 3 * 4096, vec![1; 3000].into())]);
        assert_eq!(word(&parts.info, 20), Some(2));
        let module = word(&parts.info, 24).unwrap() as usize - INFO as usize;
        let places = [0, 4, 16, 20].map(|at| u64::from(word(&parts.info, module + at).unwrap()));
        assert_eq!(places, [RAM - 3 * 4096, RAM - 3 * 4096 + 3000, RAM - 2 * 4096, RAM - 2 * 4096 + 5000]);
        let line = |at| &parts.info[word(&parts.info, module + at).unwrap() as usize - INFO as usize..];
        assert!(line(8).starts_with(b"console=hvc0\0") && line(24).starts_with(b"\0"));
    }
}
