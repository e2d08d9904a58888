//! The memory map of a PC.

use alloc::vec::Vec;
use core::ops::Range;

use stile_board::pc;

/// Start of the region up to 1 MiB that is not usable RAM: extended BIOS data area, devices of a PC, ACPI tables.
pub const RESERVED: u64 = 0x9_fc00;

/// RAM continues here.
pub const HIGH_MEMORY: u64 = 1 << 20;

/// An entry of the memory map: addresses, and type (1 is RAM, 2 reserved, in every protocol).
pub struct Memory {
    pub range: Range<u64>,
    pub kind: u32,
}

/// The memory map of a PC with `ram` bytes of RAM.
pub fn memory(ram: u64) -> Vec<Memory> {
    let [low, high] = pc::ram(ram);
    let map = [(0..RESERVED.min(low.end), 1), (RESERVED..HIGH_MEMORY, 2), (HIGH_MEMORY..low.end, 1), (high, 1)];
    map.into_iter().filter(|(range, _)| !range.is_empty()).map(|(range, kind)| Memory { range, kind }).collect()
}

/// End of RAM below the devices: boot protocols have 32-bit addresses.
pub fn lowest(ram: u64) -> u64 {
    pc::ram(ram)[0].end
}
