//! The tables of Stile's own address space ([`crate::address_space`]): what is this architecture's in it.

use stile_paging::registers::PaRange;
use stile_paging::table::{Geometry, Ia32e, Ia32ePermissions, Level, PageTable, TableMemory};

use super::instructions::cpuid;
use crate::address_space::{self, AddressSpace, Span};
use crate::memory::TableFrames;
use crate::stacks::Stacks;

/// The format of the tables, who may do what, and how their memory is reached.
pub type Format = Ia32e;
/// Permissions of Stile's mappings.
pub type Permissions = Ia32ePermissions;
/// The memory of the tables.
pub type Tables = TableFrames;

/// Where the direct map begins.
pub const PHYSMAP: u64 = 0xffff_8000_0000_0000;
/// Where devices' registers are.
pub const DEVICES: u64 = 0xffff_a000_0000_0000;
/// Where the CPUs' stacks are.
pub const STACKS: Stacks = Stacks::at(0xffff_c000_0000_0000);
/// The first tables' tables of 2 MiB pages, of 1 GiB each, for CPUs without larger ones (image-x86_64.ld, boot.S).
pub const FIRST_TABLES: u64 = 32;

unsafe extern "C" {
    static IMAGE_OFFSET: u8;
}

/// MAXPHYADDR (CPUID leaf 0x8000_0008).
pub fn pa_range() -> PaRange {
    PaRange::of_bits(cpuid(0x8000_0008, 0).eax as u8)
}

/// Whether there are pages of 1 GiB (CPUID leaf 0x8000_0001).
fn has_pages_of_1_gib() -> bool {
    cpuid(0x8000_0001, 0).edx & 1 << 26 != 0
}

/// Physical memory that the first tables map, from 0 on (boot.S).
pub fn first_mapped() -> u64 {
    if has_pages_of_1_gib() { Level::L0.size() } else { FIRST_TABLES * Level::L1.size() }
}

/// Physical extent of Stile itself, without the blob: the loader puts it where the linker script says.
pub fn image() -> Span {
    address_space::image_at(address_space::image_start().wrapping_sub(&raw const IMAGE_OFFSET as u64))
}

/// Makes Stile's address space and changes to it. `blob` is where the blob may be: from the image's end to the end of what was loaded.
/// Memory is set up, and reached through the first tables.
pub fn setup(ram: &[Span], blob: &Span) {
    let largest = if has_pages_of_1_gib() { Level::L1 } else { Level::L2 };
    let geometry = Geometry::stage1(48, pa_range()).expect("48 bits is a size that there is");
    let root = TableFrames.allocate().expect("there is memory for the first table");
    let table = PageTable::new(Ia32e { largest }, geometry, root).expect("a frame is aligned");
    let root = AddressSpace::new(table, TableFrames, ram, &image(), blob).install();
    // SAFETY: the new tables map all that is in use: the image, its stack, and memory, where it was.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// Entries that were written are for use. What was not mapped is not remembered (the manual, "Caching Translation Information").
pub fn complete_map() {}
