//! Kernels for x86-64 guests, and what is put into their memory beside them.

mod acpi;
mod linux;
mod multiboot;
mod pvh;

use std::ops::Range;

use stile_blob::Mode;
use stile_board::map;

use super::assemble::{Error, VmFiles, VmPlan};
use super::kernel::{Kernel, KernelError, Segment};
use super::layout::Layout;
use crate::config::{KernelSource, VmConfig};

pub use linux::is_linux;
pub use multiboot::MULTIBOOT_MAGIC;

/// Where the boot information is: below 640 KiB, where no kernel is loaded that is meant for a PC.
const INFO: u64 = 0x1000;
/// Room for it.
const INFO_LEN: usize = 0x8000;
/// From here to 1 MiB is no RAM for kernels: the extended BIOS data area, devices on a PC, and the ACPI tables.
const RESERVED: u64 = 0x9_fc00;
/// RAM goes on here.
const HIGH_MEMORY: u64 = 1 << 20;

/// A range of the memory map: its addresses, and its type, of which 1 is RAM and 2 reserved, in every protocol.
struct Memory {
    range: Range<u64>,
    kind: u32,
}

/// The memory map of a PC with `ram` bytes of RAM.
fn memory(ram: u64) -> Vec<Memory> {
    let mut map = vec![Memory { range: 0..RESERVED.min(ram), kind: 1 }, Memory { range: RESERVED..HIGH_MEMORY, kind: 2 }];
    if ram > HIGH_MEMORY {
        map.push(Memory { range: HIGH_MEMORY..ram, kind: 1 });
    }
    map
}

/// What a boot protocol makes of a kernel.
struct Parts {
    kernel: Kernel,
    /// The initial RAM file system's place.
    initrd: Option<Range<u64>>,
    /// What goes to [`INFO`].
    info: Vec<u8>,
    mode: Mode,
    /// What the ACPI tables describe.
    acpi: acpi::Kind,
}

/// Where a BIOS keeps its data.
const BIOS_DATA: u64 = 0x400;

/// What kernels look at of a BIOS's data: where its extended data area begins, and how many KiB of base memory are below that.
fn bios_data() -> Vec<u8> {
    const EXTENDED_DATA: usize = 0x0e;
    const BASE_MEMORY: usize = 0x13;
    let mut bytes = vec![0; 0x100];
    bytes[EXTENDED_DATA..EXTENDED_DATA + 2].copy_from_slice(&((RESERVED >> 4) as u16).to_le_bytes());
    bytes[BASE_MEMORY..BASE_MEMORY + 2].copy_from_slice(&((RESERVED >> 10) as u16).to_le_bytes());
    bytes
}

/// Decides what goes where in a virtual machine's RAM.
///
/// # Errors
/// The kernel can't be booted.
pub fn plan(vm: &VmConfig, files: &VmFiles<'_>) -> Result<VmPlan, Error> {
    let initrd = files.initrd.filter(|initrd| !initrd.is_empty());
    let parts = parts(vm, files, initrd).map_err(|error| Error::Kernel { vm: vm.name.clone(), error })?;
    let layout = Layout { dtb: INFO..INFO + parts.info.len() as u64, initrd: parts.initrd };
    let initrd = initrd.filter(|_| layout.initrd.is_some()).map(<[u8]>::to_vec);
    let more = vec![(BIOS_DATA, bios_data()), (acpi::TABLES, acpi::tables(vm.vcpus, parts.acpi))];
    Ok(VmPlan { kernel: parts.kernel, initrd, dtb: parts.info, layout, mode: parts.mode, ram_base: 0, more })
}

fn parts(vm: &VmConfig, files: &VmFiles<'_>, initrd: Option<&[u8]>) -> Result<Parts, KernelError> {
    if files.kernel.is_empty() {
        return Err(KernelError::Empty);
    }
    if let Some(parts) = linux::parts(files.kernel, vm.memory, files.bootargs, initrd)? {
        return Ok(parts);
    }
    let name = match &vm.kernel {
        KernelSource::File(path) => path.file_name().unwrap_or_default().to_string_lossy(),
        KernelSource::Debian(_) => "debian".into(),
    };
    let command_line = format!("{name} {}", files.bootargs);
    if let Some(parts) = multiboot::parts(files.kernel, vm.memory, command_line.trim_end(), initrd)? {
        return Ok(parts);
    }
    pvh::parts(files.kernel, vm.memory, files.bootargs, initrd)?.ok_or(KernelError::NoMultiboot)
}

/// Refuses a kernel with parts where there is no RAM, or where something else is.
fn check_places(segments: &[Segment], ram: u64) -> Result<(), KernelError> {
    let taken = [BIOS_DATA..INFO + INFO_LEN as u64, RESERVED..HIGH_MEMORY];
    for segment in segments {
        let memory = segment.memory();
        let meets = |taken: &Range<u64>| memory.start < taken.end && taken.start < memory.end;
        if taken.iter().any(meets) || !map::contains(0, ram, memory.start, segment.mem_len) {
            return Err(KernelError::Malformed(format!(
                "it needs memory at {:#x}..{:#x}, but RAM ends at {ram:#x}, and {:#x}..{:#x} holds the boot information",
                memory.start, memory.end, taken[0].start, taken[0].end
            )));
        }
    }
    Ok(())
}

/// The initial RAM file system goes as high below `end` as it may, in whole pages, and above the kernel.
fn place(len: u64, kernel_end: u64, end: u64) -> Result<Range<u64>, KernelError> {
    const PAGE: u64 = 4096;
    let start = end.saturating_sub(len) & !(PAGE - 1);
    if start < kernel_end.max(HIGH_MEMORY) {
        let what = format!("the kernel and the initial RAM file system ({len} bytes) do not fit into RAM, which ends at {end:#x}");
        return Err(KernelError::Malformed(what));
    }
    Ok(start..start + len)
}
