//! Linux, started in 64-bit mode: "The Linux/x86 Boot Protocol", "64-bit Boot Protocol" (Documentation/arch/x86/boot.rst).

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use stile_blob::Mode;

use super::acpi;
use super::memory::{Memory, Size, memory};
use super::parts::{INFO, INFO_LEN, Parts, check_places, place};
use crate::bytes::word;
use crate::kernel::check_whole;
use crate::{Format, Kernel, KernelError, Segment};

/// The setup header begins here in the file and in the boot parameters.
const HEADER: usize = 0x1f1;
/// Offsets of its fields, and of other boot parameters ("struct boot_params").
mod field {
    pub const RSDP: usize = 0x070;
    pub const MAP_ENTRIES: usize = 0x1e8;
    pub const SETUP_SECTORS: usize = 0x1f1;
    pub const SYSTEM_SIZE: usize = 0x1f4;
    pub const HEADER_END: usize = 0x201;
    pub const MAGIC: usize = 0x202;
    pub const VERSION: usize = 0x206;
    pub const KERNEL_VERSION: usize = 0x20e;
    pub const LOADER: usize = 0x210;
    pub const LOAD_FLAGS: usize = 0x211;
    pub const INITRD: usize = 0x218;
    pub const INITRD_LEN: usize = 0x21c;
    pub const COMMAND_LINE: usize = 0x228;
    pub const INITRD_MAX: usize = 0x22c;
    pub const FLAGS: usize = 0x236;
    pub const PREFERRED: usize = 0x258;
    pub const INIT_SIZE: usize = 0x260;
    pub const MAP: usize = 0x2d0;
}

/// In `xloadflags`: the kernel has a 64-bit entry point, 0x200 into it.
const HAS_64_BIT_ENTRY: u8 = 1;
const ENTRY_64: u64 = 0x200;
/// The first version of the protocol with those flags.
const VERSION_2_12: u16 = 0x020c;

const PAGE: usize = 4096;
/// Boot parameters, command line and page tables, in pages from [`INFO`].
const COMMAND_LINE_PAGE: usize = 1;
const TABLES_PAGE: usize = 2;
/// A root, a table of level 3, and four of level 2: the first 4 GiB.
const TABLES: usize = 6;
const _: () = assert!((TABLES_PAGE + TABLES) * PAGE <= INFO_LEN);

/// Whether a file is a compressed Linux kernel: other programs with the header contain no Linux version.
pub fn is_linux(file: &[u8]) -> bool {
    /// Offset from the header's pointers to file offsets, where the setup code begins.
    const SECTOR: usize = 0x200;
    let half = |at: usize| file.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u16::from_le_bytes(*bytes));
    let version = half(field::KERNEL_VERSION).filter(|&at| at != 0).and_then(|at| file.get(SECTOR + usize::from(at)..));
    file.get(field::MAGIC..field::MAGIC + 4) == Some(b"HdrS") && version.is_some_and(|text| text.first().is_some_and(u8::is_ascii_digit))
}

/// The memory layout of a Linux kernel; `None` if `file` is not one.
///
/// # Errors
/// A Linux kernel that can't be started.
pub fn parts<'a>(file: &Cow<'a, [u8]>, size: Size<'_>, bootargs: &str, initrd: Option<&[u8]>) -> Result<Option<Parts<'a>>, KernelError> {
    if file.get(field::MAGIC..field::MAGIC + 4) != Some(b"HdrS") {
        return Ok(None);
    }
    let half = |at: usize| file.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u16::from_le_bytes(*bytes));
    let flags = *file.get(field::FLAGS).ok_or_else(cut)?;
    if half(field::VERSION).ok_or_else(cut)? < VERSION_2_12 || flags & HAS_64_BIT_ENTRY == 0 {
        return Err(malformed("has no 64-bit entry point; expected one for x86-64, 3.8 or later"));
    }
    let sectors = match *file.get(field::SETUP_SECTORS).ok_or_else(cut)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512;
    if start >= file.len() {
        return Err(cut());
    }
    // In units of 16 bytes.
    let system = u64::from(word(file, field::SYSTEM_SIZE).ok_or_else(cut)?) * 16;
    check_whole(file, Some(start as u64 + system))?;
    divided(file, file.clone(), start, size, bootargs, initrd).map(Some)
}

/// The memory layout of a Linux kernel that was loaded before, by its boot parameters and the memory behind its entry point; `None` if those
/// are not Linux's.
///
/// # Errors
/// A Linux kernel that can't be started, such as with less RAM.
pub fn loaded<'a>(
    info: &[u8],
    contents: &'a [u8],
    size: Size<'_>,
    bootargs: &str,
    initrd: Option<&[u8]>,
) -> Result<Option<Parts<'a>>, KernelError> {
    if info.get(field::MAGIC..field::MAGIC + 4) != Some(b"HdrS") {
        return Ok(None);
    }
    divided(info, Cow::Borrowed(contents), 0, size, bootargs, initrd).map(Some)
}

/// The command line in boot parameters of [`parts`].
pub fn command_line(info: &[u8]) -> Option<&str> {
    let line = info.get(COMMAND_LINE_PAGE * PAGE..TABLES_PAGE * PAGE)?;
    core::str::from_utf8(line.split(|&byte| byte == 0).next()?).ok()
}

/// The place of the initial RAM file system in boot parameters of [`parts`].
pub fn initrd(info: &[u8]) -> Option<Range<u64>> {
    let (start, len) = (u64::from(word(info, field::INITRD)?), u64::from(word(info, field::INITRD_LEN)?));
    (len != 0).then_some(start..start + len)
}

fn malformed(what: &str) -> KernelError {
    KernelError::Malformed(format!("it is a Linux image, but {what}"))
}

fn cut() -> KernelError {
    malformed("its header is truncated")
}

/// The memory layout of a kernel whose setup header is in `file`, at its offset, and whose other part is in `contents` from `start` on.
fn divided<'a>(
    file: &[u8],
    contents: Cow<'a, [u8]>,
    start: usize,
    size: Size<'_>,
    bootargs: &str,
    initrd: Option<&[u8]>,
) -> Result<Parts<'a>, KernelError> {
    let load = file.get(field::PREFERRED..).and_then(|rest| rest.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(cut)?;
    let init_size = u64::from(word(file, field::INIT_SIZE).ok_or_else(cut)?);
    let segment = Segment { gpa: load, file: start..contents.len(), mem_len: init_size.max((contents.len() - start) as u64) };
    check_places(core::slice::from_ref(&segment), size.ram, INFO..INFO + INFO_LEN as u64)?;
    let highest = u64::from(word(file, field::INITRD_MAX).ok_or_else(cut)?).saturating_add(1);
    let initrd = initrd.map(|initrd| place(initrd.len() as u64, segment.memory().end, size.ram.min(highest))).transpose()?;

    let info = information(file, size, bootargs, initrd.clone()).ok_or_else(cut)?;
    let kernel = Kernel {
        format: Format::BzImage,
        zboot: false,
        compression: None,
        entry: load + ENTRY_64,
        segments: vec![segment],
        size_known: true,
        contents,
    };
    Ok(Parts {
        kernel,
        initrd,
        more: Vec::new(),
        info,
        info_at: INFO,
        mode: Mode::Long { tables: INFO + (TABLES_PAGE * PAGE) as u64 },
        acpi: acpi::Kind::Reduced,
    })
}

/// Boot parameters, command line and page tables.
fn information(file: &[u8], size: Size<'_>, bootargs: &str, initrd: Option<Range<u64>>) -> Option<Vec<u8>> {
    const NO_PARTICULAR_LOADER: u8 = 0xff;
    let mut bytes = vec![0; (TABLES_PAGE + TABLES) * PAGE];
    // The setup header, whose length is in it.
    let end = 0x202 + usize::from(*file.get(field::HEADER_END)?);
    bytes.get_mut(HEADER..end)?.copy_from_slice(file.get(HEADER..end)?);
    bytes[field::LOADER] = NO_PARTICULAR_LOADER;
    // Quiet flag and heap are for the parts that are not started.
    bytes[field::LOAD_FLAGS] |= 1;
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(field::RSDP, &acpi::TABLES.to_le_bytes());
    // A header of a kernel that was loaded before has the former ones.
    let initrd = initrd.unwrap_or_default();
    put(field::INITRD, &(initrd.start as u32).to_le_bytes());
    put(field::INITRD_LEN, &((initrd.end - initrd.start) as u32).to_le_bytes());
    put(field::COMMAND_LINE, &((INFO as usize + COMMAND_LINE_PAGE * PAGE) as u32).to_le_bytes());
    // Truncated, with space for the NUL.
    let command_line = &bootargs.as_bytes()[..bootargs.len().min(PAGE - 1)];
    put(COMMAND_LINE_PAGE * PAGE, command_line);
    let map = memory(size);
    put(field::MAP_ENTRIES, &[map.len() as u8]);
    for (n, Memory { range, kind }) in map.iter().enumerate() {
        let at = field::MAP + 20 * n;
        put(at, &range.start.to_le_bytes());
        put(at + 8, &(range.end - range.start).to_le_bytes());
        put(at + 16, &kind.to_le_bytes());
    }
    let tables = page_tables(INFO + (TABLES_PAGE * PAGE) as u64);
    put(TABLES_PAGE * PAGE, &tables);
    Some(bytes)
}

/// Identity-maps the first 4 GiB with 2 MiB pages; the tables lie at `base`.
fn page_tables(base: u64) -> Vec<u8> {
    const PRESENT_WRITABLE: u64 = 0b11;
    const LARGE: u64 = 1 << 7;
    let table = |n: u64| (base + n * PAGE as u64) | PRESENT_WRITABLE;
    let mut entries = vec![0u64; TABLES * PAGE / 8];
    entries[0] = table(1);
    for n in 0..4 {
        entries[512 + n as usize] = table(2 + n);
    }
    for (n, entry) in entries[1024..].iter_mut().enumerate() {
        *entry = (n as u64) << 21 | LARGE | PRESENT_WRITABLE;
    }
    entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    const RAM: u64 = 128 << 20;

    fn size(ram: u64) -> Size<'static> {
        Size { ram, disks: &[] }
    }

    fn parts(file: &[u8], ram: u64, bootargs: &str, initrd: Option<&[u8]>) -> Result<Option<Parts<'static>>, KernelError> {
        super::parts(&Cow::Owned(file.to_vec()), size(ram), bootargs, initrd)
    }

    fn bzimage() -> Vec<u8> {
        let mut file = vec![0; 3 * 512 + 4096];
        file[field::SETUP_SECTORS] = 2;
        file[field::HEADER_END] = 0x66;
        file[field::MAGIC..field::MAGIC + 4].copy_from_slice(b"HdrS");
        file[field::VERSION..field::VERSION + 2].copy_from_slice(&0x20fu16.to_le_bytes());
        file[field::FLAGS] = HAS_64_BIT_ENTRY;
        file[field::INITRD_MAX..field::INITRD_MAX + 4].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
        file[field::PREFERRED..field::PREFERRED + 8].copy_from_slice(&0x100_0000u64.to_le_bytes());
        file[field::INIT_SIZE..field::INIT_SIZE + 4].copy_from_slice(&0x200_0000u32.to_le_bytes());
        file
    }

    #[test]
    fn kernel_is_at_its_preferred_address_and_initrd_at_the_top() {
        let parts = parts(&bzimage(), RAM, "console=ttyS0", Some(&[1; 5000])).unwrap().unwrap();
        assert_eq!(parts.kernel.entry, 0x100_0200);
        assert_eq!(parts.kernel.segments[0].memory(), 0x100_0000..0x300_0000);
        assert_eq!(parts.kernel.segments[0].file, 1536..1536 + 4096);
        assert_eq!(parts.initrd, Some(RAM - 8192..RAM - 8192 + 5000));
        assert_eq!(word(&parts.info, field::INITRD), Some((RAM - 8192) as u32));
        assert_eq!(parts.info[field::MAP_ENTRIES], 3);
        assert!(parts.info[COMMAND_LINE_PAGE * PAGE..].starts_with(b"console=ttyS0\0"));
        assert_eq!(parts.mode, Mode::Long { tables: 0x3000 });
        // The entry that maps the kernel: page 8.
        assert_eq!(word(&parts.info, TABLES_PAGE * PAGE + 2 * PAGE + 8 * 8), Some(0x100_0083));
    }

    #[test]
    fn a_kernel_that_was_loaded_gets_other_memory_and_another_command_line() {
        let file = bzimage();
        let old = parts(&file, RAM, "quiet", Some(&[1; 5000])).unwrap().unwrap();
        assert_eq!((command_line(&old.info), initrd(&old.info)), (Some("quiet"), old.initrd));
        let contents = old.kernel.bytes(&old.kernel.segments[0]);
        let new = loaded(&old.info, contents, size(2 * RAM), "debug", None).unwrap().unwrap();
        let same = parts(&file, 2 * RAM, "debug", None).unwrap().unwrap();
        assert_eq!((&new.info, new.kernel.entry, new.mode), (&same.info, same.kernel.entry, same.mode));
        assert_eq!(new.kernel.bytes(&new.kernel.segments[0]), contents);
        assert_eq!((command_line(&new.info), initrd(&new.info)), (Some("debug"), None));
        assert!(loaded(&old.info, contents, size(32 << 20), "", None).is_err(), "too little memory");
        assert!(loaded(&[0; 100], contents, size(RAM), "", None).unwrap().is_none());
    }

    #[test]
    fn linux_names_its_version() {
        let mut file = bzimage();
        assert!(!is_linux(&file), "another program with that header");
        file[field::KERNEL_VERSION..field::KERNEL_VERSION + 2].copy_from_slice(&0x100u16.to_le_bytes());
        file[0x300..0x305].copy_from_slice(b"6.1.0");
        assert!(is_linux(&file));
        assert!(!is_linux(&file[..0x300]) && !is_linux(b""));
    }

    #[test]
    fn unstartable_kernels_are_refused() {
        let refusal = |file: &[u8], ram| parts(file, ram, "", Some(&[0; 5000])).err().expect("no kernel").to_string();
        assert!(parts(b"something", RAM, "", None).unwrap().is_none());
        assert!(refusal(&bzimage(), 32 << 20).contains("RAM ends at"));
        assert!(refusal(&bzimage(), 48 << 20).contains("do not fit"));
        let mut old = bzimage();
        old[field::FLAGS] = 0;
        assert!(refusal(&old, RAM).contains("64-bit"));
        assert!(refusal(&bzimage()[..0x210], RAM).contains("truncated"));
        let mut far = bzimage();
        far[field::PREFERRED..field::PREFERRED + 8].fill(0xff);
        assert!(refusal(&far, RAM).contains("RAM ends at"));
        let mut whole = bzimage();
        whole[field::SYSTEM_SIZE..field::SYSTEM_SIZE + 4].copy_from_slice(&(4096u32 / 16).to_le_bytes());
        assert!(parts(&whole, RAM, "", None).is_ok());
        assert!(refusal(&whole[..whole.len() - 1], RAM).contains("it is truncated: it has 5631 of 5632 bytes"));
    }
}
