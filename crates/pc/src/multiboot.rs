//! Multiboot 1 (*Multiboot Specification version 0.6.96*, "Boot information format").

use crate::{Kind, Module, Range};
use alloc::vec::Vec;

/// EAX as the kernel starts; EBX holds the address of the information.
pub const MAGIC: u32 = 0x2bad_b002;

const HAS_MEMORY: u32 = 1 << 0;
const HAS_COMMAND_LINE: u32 = 1 << 2;
const HAS_MODULES: u32 = 1 << 3;
const HAS_MAP: u32 = 1 << 6;
/// Up to the fields of drives, which are left out.
const SIZE: u32 = 52;
const MODULE: u32 = 16;
const MAP_ENTRY: u32 = 24;
/// Where the memory from 1 MiB on begins.
const UPPER: u64 = 1 << 20;
/// The most memory from 0 on that is called lower, in KiB.
const MOST_LOWER: u64 = 640;

/// The information, to be placed at `address`; `command_line` is the address of a text ended by a zero. All addresses must lie below 4 GiB:
/// None if one does not.
pub fn information(address: u32, memory: &[Range], command_line: u32, modules: &[Module]) -> Option<Vec<u8>> {
    let modules_at = address.checked_add(SIZE)?;
    let map_at = modules_at.checked_add(u32::try_from(modules.len()).ok()?.checked_mul(MODULE)?)?;
    let map_size = u32::try_from(memory.len()).ok()?.checked_mul(MAP_ENTRY)?;
    map_at.checked_add(map_size)?;
    // KiB of memory from `start` on, up to the end of its range.
    let from = |start: u64| {
        let inside = |range: &&Range| range.kind == Kind::Memory && range.start <= start && start - range.start < range.size;
        memory.iter().find(inside).map_or(0, |range| (range.size - (start - range.start)) / 1024)
    };
    let upper = u32::try_from(from(UPPER)).unwrap_or(u32::MAX);
    let header = [
        HAS_MEMORY | HAS_COMMAND_LINE | HAS_MODULES | HAS_MAP,
        from(0).min(MOST_LOWER) as u32,
        upper,
        // No boot device.
        0,
        command_line,
        modules.len() as u32,
        modules_at,
        // No symbols.
        0,
        0,
        0,
        0,
        map_size,
        map_at,
    ];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    for module in modules {
        let end = u32::try_from(module.start.checked_add(module.size)?).ok()?;
        let fields = [u32::try_from(module.start).ok()?, end, u32::try_from(module.command_line).ok()?, 0];
        bytes.extend(fields.into_iter().flat_map(u32::to_le_bytes));
    }
    for range in memory {
        // The size of an entry does not count itself.
        bytes.extend((MAP_ENTRY - 4).to_le_bytes());
        bytes.extend(range.start.to_le_bytes());
        bytes.extend(range.size.to_le_bytes());
        bytes.extend((range.kind as u32).to_le_bytes());
    }
    Some(bytes)
}
