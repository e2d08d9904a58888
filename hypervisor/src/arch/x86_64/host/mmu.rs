//! Page tables of Stile's own address space ([`crate::address_space`]).

use core::sync::atomic::{AtomicU64, Ordering};

use stile_paging::registers::PaRange;
use stile_paging::table::{Geometry, Ia32e, Ia32ePermissions, Level, PageTable, TableMemory};

use super::instructions::cpuid;
use crate::address_space::{self, AddressSpace, Span};
use crate::memory::TableFrames;
use crate::stacks::Stacks;

/// Format of the tables.
pub type Format = Ia32e;
/// Permissions of Stile's mappings.
pub type Permissions = Ia32ePermissions;
/// Memory of the tables.
pub type Tables = TableFrames;

/// Start of the direct map.
pub const PHYSMAP: u64 = 0xffff_8000_0000_0000;
/// Start of device mappings.
pub const DEVICES: u64 = 0xffff_a000_0000_0000;
/// Start of the CPUs' stacks.
pub const STACKS: Stacks = Stacks::at(0xffff_c000_0000_0000);
/// Number of 2 MiB-page tables of the boot tables, 1 GiB each, for CPUs without larger pages (image-x86_64.ld,
/// boot.S).
pub const FIRST_TABLES: u64 = 32;

unsafe extern "C" {
    static IMAGE_OFFSET: u8;
}

/// MAXPHYADDR (CPUID leaf 0x8000_0008).
pub fn pa_range() -> PaRange {
    PaRange::of_bits(cpuid(0x8000_0008, 0).eax as u8)
}

/// Whether 1 GiB pages are supported (CPUID leaf 0x8000_0001).
fn has_pages_of_1_gib() -> bool {
    cpuid(0x8000_0001, 0).edx & 1 << 26 != 0
}

/// Size of physical memory that the boot tables map, from 0 on (boot.S).
pub fn first_mapped() -> u64 {
    if has_pages_of_1_gib() { Level::L0.size() } else { FIRST_TABLES * Level::L1.size() }
}

/// Distance of the image from the physical address that it is linked for, in bytes.
static DISPLACEMENT: AtomicU64 = AtomicU64::new(0);

/// Sets the distance of the image from the physical address that it is linked for.
pub fn set_displacement(displacement: u64) {
    DISPLACEMENT.store(displacement, Ordering::Relaxed);
}

/// Distance of the image from the physical address that it is linked for: a multiple of 2 MiB, below 4 GiB.
pub fn displacement() -> u64 {
    DISPLACEMENT.load(Ordering::Relaxed)
}

/// Physical extent of Stile without the blob.
pub fn image() -> Span {
    let linked = address_space::image_start().wrapping_sub(&raw const IMAGE_OFFSET as u64);
    address_space::image_at(linked + displacement())
}

/// Builds Stile's address space and switches to it. `blob` is the possible extent of the blob: from the image's end
/// to the end of the loaded file. Memory is set up, and mapped by the boot tables.
pub fn setup(ram: &[Span], blob: &Span) {
    let largest = if has_pages_of_1_gib() { Level::L1 } else { Level::L2 };
    let geometry = Geometry::stage1(48, pa_range()).expect("48 bits is a size that there is");
    let root = TableFrames.allocate().expect("there is memory for the first table");
    let table = PageTable::new(Ia32e { largest }, geometry, root).expect("a frame is aligned");
    let root = AddressSpace::new(table, TableFrames, ram, &image(), blob).install();
    // SAFETY: the new tables map everything in use at the same addresses: image, stack and memory.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// Makes new entries visible: nothing to do, since translations that are not present are not cached (the manual,
/// "Caching Translation Information").
pub fn complete_map() {}
