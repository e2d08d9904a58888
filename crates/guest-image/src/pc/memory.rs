//! The memory map of a PC.

use alloc::vec::Vec;
use core::ops::Range;

use stile_board::{memory_disks, pc};

/// Start of the region up to 1 MiB that is not usable RAM: extended BIOS data area, devices of a PC, ACPI tables.
pub const RESERVED: u64 = 0x9_fc00;

/// RAM continues here.
pub const HIGH_MEMORY: u64 = 1 << 20;

/// Type of RAM in every protocol's memory map.
const TYPE_RAM: u32 = 1;

/// Type of reserved memory in every protocol's memory map.
const TYPE_RESERVED: u32 = 2;

/// Type of persistent memory that is no NVDIMM of ACPI's: `E820_TYPE_PRAM` (Linux, arch/x86/include/asm/e820/types.h). Other systems
/// treat it as reserved.
const TYPE_PERSISTENT: u32 = 12;

/// The memory of a PC: RAM, and disks behind it.
#[derive(Clone, Copy, Debug)]
pub struct Size<'a> {
    /// RAM in bytes.
    pub ram: u64,
    /// Sizes of the regions of disks.
    pub disks: &'a [u64],
}

impl Size<'_> {
    /// Address of the first disk.
    pub fn disks_at(self) -> u64 {
        pc::disks_start(self.ram, memory_disks::total(self.disks))
    }
}

/// An entry of the memory map.
pub struct Memory {
    pub range: Range<u64>,
    pub kind: u32,
}

/// The memory map of a PC.
pub fn memory(size: Size<'_>) -> Vec<Memory> {
    let [low, high] = pc::ram(size.ram);
    let ram =
        [(0..RESERVED.min(low.end), TYPE_RAM), (RESERVED..HIGH_MEMORY, TYPE_RESERVED), (HIGH_MEMORY..low.end, TYPE_RAM), (high, TYPE_RAM)];
    let disks = memory_disks::places(size.disks_at(), size.disks).map(|disk| (disk, TYPE_PERSISTENT));
    ram.into_iter().chain(disks).filter(|(range, _)| !range.is_empty()).map(|(range, kind)| Memory { range, kind }).collect()
}

/// End of RAM below the devices: boot protocols have 32-bit addresses.
pub fn lowest(ram: u64) -> u64 {
    pc::ram(ram)[0].end
}
