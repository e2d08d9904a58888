//! PVH direct boot (Xen's *x86/HVM direct boot ABI*), entered in 32-bit mode without paging, EBX holding the address of the information.

use crate::{Module, Range};
use alloc::vec::Vec;

const MAGIC: u32 = 0x336e_c578;
/// The first version with a map of memory.
const VERSION: u32 = 1;
const SIZE: u64 = 56;
const MODULE: u64 = 32;

/// The information, to be placed at `address`. `command_line` is the address of a text ended by a zero, `rsdp` that of the ACPI tables.
pub fn start_info(address: u64, memory: &[Range], command_line: u64, modules: &[Module], rsdp: u64) -> Vec<u8> {
    let modules_at = address.wrapping_add(SIZE);
    let map_at = modules_at.wrapping_add(MODULE * modules.len() as u64);
    let mut bytes = Vec::new();
    for word in [MAGIC, VERSION, 0, modules.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    for word in [modules_at, command_line, rsdp, map_at] {
        bytes.extend(word.to_le_bytes());
    }
    for word in [memory.len() as u32, 0] {
        bytes.extend(word.to_le_bytes());
    }
    for module in modules {
        for word in [module.start, module.size, module.command_line, 0] {
            bytes.extend(word.to_le_bytes());
        }
    }
    for range in memory {
        bytes.extend(range.start.to_le_bytes());
        bytes.extend(range.size.to_le_bytes());
        bytes.extend((range.kind as u32).to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
    }
    bytes
}
