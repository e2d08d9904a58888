//! Parts into which a boot protocol divides a kernel, and their placement.

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use stile_blob::Mode;
use stile_board::map;

use super::memory::{HIGH_MEMORY, RESERVED, lowest};
use super::{acpi, bios};
use crate::{Kernel, KernelError, Segment};

/// Address of the boot information of Linux and PVH: below 640 KiB, where no such kernel is loaded.
pub const INFO: u64 = 0x1000;

/// Room for it.
pub const INFO_LEN: usize = 0x8000;

/// The domain that Xen starts.
#[derive(Clone, Copy)]
pub struct Domain<'a, 'l> {
    /// Its kernel's file.
    pub kernel: &'a [u8],
    /// Its kernel's command line.
    pub bootargs: &'l str,
}

/// A kernel prepared by a boot protocol.
pub struct Parts<'a> {
    pub kernel: Kernel<'a>,
    /// The initial RAM file system's place.
    pub initrd: Option<Range<u64>>,
    /// Further files and their addresses.
    pub more: Vec<(u64, Cow<'a, [u8]>)>,
    /// The boot information and its address.
    pub info: Vec<u8>,
    pub info_at: u64,
    pub mode: Mode,
    /// The kind of ACPI tables.
    pub acpi: acpi::Kind,
}

/// Address of the BIOS data area.
pub const BIOS_DATA: u64 = bios::VECTORS_LEN;

/// Rejects a kernel with segments outside RAM below 4 GiB, or overlapping other data; `info` is the boot
/// information's range.
pub fn check_places(segments: &[Segment], ram: u64, info: Range<u64>) -> Result<(), KernelError> {
    let ram = lowest(ram);
    let taken = [BIOS_DATA..BIOS_DATA + bios::DATA_AREA_LEN as u64, info, RESERVED..HIGH_MEMORY];
    for segment in segments {
        let memory = segment.memory();
        if taken.iter().any(|taken| meets(&memory, taken)) || !map::contains(0, ram, memory.start, segment.mem_len) {
            return Err(KernelError::Malformed(format!(
                "it needs memory at {:#x}..{:#x}, but RAM ends at {ram:#x}, and {:#x}..{:#x} holds the boot information",
                memory.start, memory.end, taken[1].start, taken[1].end
            )));
        }
    }
    Ok(())
}

pub fn meets(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Places the initial RAM file system as high below `end` as the boot protocol permits, in whole pages, above
/// the kernel.
pub fn place(len: u64, kernel_end: u64, end: u64) -> Result<Range<u64>, KernelError> {
    const PAGE: u64 = 4096;
    let end = lowest(end);
    let start = end.saturating_sub(len) & !(PAGE - 1);
    if start < kernel_end.max(HIGH_MEMORY) {
        let what = format!("the kernel and the initial RAM file system ({len} bytes) do not fit into RAM, which ends at {end:#x}");
        return Err(KernelError::Malformed(what));
    }
    Ok(start..start + len)
}
