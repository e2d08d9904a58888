//! Stile's own address space.
//!
//! | from | what | how |
//! | --- | --- | --- |
//! | [`PHYSMAP`] | memory, at its physical address above this; not the image | read and write; the blob: read |
//! | [`DEVICES`] | devices that Stile drives, likewise | read and write |
//! | [`STACKS`] | each CPU's stack and block, with an unmapped page under it | read and write |
//! | `IMAGE_OFFSET` (image-x86_64.ld) | code; constants; data | execute; read; read and write |
//!
//! Nothing is both writable and executable, and nothing is mapped twice.

use core::ops::Range;

use stile_paging::PAGE_SIZE;
use stile_paging::registers::PaRange;
use stile_paging::table::{Attributes, Geometry, Ia32e, Ia32ePermissions, Level, Mapping, MemoryType, PageTable, TableMemory};
use stile_sched::lock::TicketLock;

use super::board::{Board, Span};
use super::instructions::cpuid;
use crate::memory::TableFrames;
use crate::stacks::Stacks;

/// Where the direct map begins.
pub const PHYSMAP: u64 = 0xffff_8000_0000_0000;
/// Where devices' registers are.
const DEVICES: u64 = 0xffff_a000_0000_0000;
/// Where the CPUs' stacks are.
pub const STACKS: Stacks = Stacks::at(0xffff_c000_0000_0000);
/// The first tables' tables of 2 MiB pages, of 1 GiB each, for CPUs without larger ones (image-x86_64.ld, boot.S).
pub const FIRST_TABLES: u64 = 32;
/// Bits of an address that tables translate; those above repeat the highest of them.
const TRANSLATED: u64 = (1 << 48) - 1;

unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __boot_stack_guard: u8;
    static __image_end: u8;
    static IMAGE_OFFSET: u8;
}

/// Address of a symbol of the linker script.
macro_rules! symbol {
    ($name:ident) => {
        &raw const $name as u64
    };
}

static ADDRESS_SPACE: TicketLock<Option<PageTable<Ia32e>>> = TicketLock::new(None);

fn map(table: &mut PageTable<Ia32e>, address: u64, output: u64, size: u64, memory: MemoryType, permissions: Ia32ePermissions) {
    let attributes = Attributes { memory, permissions };
    let mapping = Mapping { address: address & TRANSLATED, output, size, attributes };
    if let Err(error) = table.map(&mut TableFrames, mapping) {
        panic!("Stile can't map {output:#x} at {address:#x}, {size:#x} bytes: {error:?}");
    }
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

/// Physical extent of Stile itself, without the blob.
pub fn image() -> Span {
    image_to_physical(symbol!(__image_start))..image_to_physical(symbol!(__image_end))
}

/// Physical address of something in the image.
pub fn image_to_physical(address: u64) -> u64 {
    address.wrapping_sub(symbol!(IMAGE_OFFSET))
}

/// Makes Stile's address space and changes to it. `blob` is where the blob may be: from the image's end to the end of what was loaded.
/// Memory is set up, and reached through the first tables.
pub fn setup(board: &Board, blob: &Span) {
    let largest = if has_pages_of_1_gib() { Level::L1 } else { Level::L2 };
    let geometry = Geometry::stage1(48, pa_range()).expect("48 bits is a size that there is").with_largest(largest);
    let root = TableFrames.allocate().expect("there is memory for the first table");
    let mut table = PageTable::new(Ia32e, geometry, root).expect("a frame is aligned");

    // The image, part by part.
    let parts = [
        (symbol!(__image_start), symbol!(__text_end), Ia32ePermissions::CODE),
        (symbol!(__text_end), symbol!(__rodata_end), Ia32ePermissions::READ),
        (symbol!(__rodata_end), symbol!(__boot_stack_guard), Ia32ePermissions::READ_WRITE),
        (symbol!(__boot_stack_guard) + PAGE_SIZE, symbol!(__image_end), Ia32ePermissions::READ_WRITE),
    ];
    for (start, end, permissions) in parts {
        map(&mut table, start, image_to_physical(start), end - start, MemoryType::Normal, permissions);
    }

    // Memory, but for the image; the blob can't be changed.
    let image = image();
    for ram in &board.ram {
        let mut at = ram.start;
        for (hole, permissions) in [(&image, None), (blob, Some(Ia32ePermissions::READ))] {
            if hole.start >= ram.end || hole.end <= at {
                continue;
            }
            if hole.start > at {
                map(&mut table, PHYSMAP + at, at, hole.start - at, MemoryType::Normal, Ia32ePermissions::READ_WRITE);
            }
            at = hole.end.min(ram.end);
            if let Some(permissions) = permissions {
                let start = hole.start.max(ram.start);
                map(&mut table, PHYSMAP + start, start, at - start, MemoryType::Normal, permissions);
            }
        }
        if at < ram.end {
            map(&mut table, PHYSMAP + at, at, ram.end - at, MemoryType::Normal, Ia32ePermissions::READ_WRITE);
        }
    }
    *ADDRESS_SPACE.lock() = Some(table);
    // SAFETY: the new tables map all that is in use: the image, its stack, and memory, where it was.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// Root of the tables.
pub fn root() -> u64 {
    ADDRESS_SPACE.lock().as_ref().expect("set up").root()
}

/// Maps a device's registers, if they are not yet, and returns their virtual address.
pub fn device(registers: Span) -> usize {
    let start = registers.start & !(PAGE_SIZE - 1);
    let end = registers.end.next_multiple_of(PAGE_SIZE);
    let mut table = ADDRESS_SPACE.lock();
    let table = table.as_mut().expect("set up");
    if table.translate(&TableFrames, (DEVICES + start) & TRANSLATED).is_err() {
        map(table, DEVICES + start, start, end - start, MemoryType::Device, Ia32ePermissions::READ_WRITE);
    }
    (DEVICES + registers.start) as usize
}

/// Maps `memory`, [`crate::stacks::SIZE`] bytes, as a CPU's stack and block, and returns the address of its upper end.
pub fn stack(cpu: usize, memory: u64) -> u64 {
    let Range { start, end } = STACKS.of_cpu(cpu);
    let mut table = ADDRESS_SPACE.lock();
    let table = table.as_mut().expect("set up");
    map(table, start, memory, end - start, MemoryType::Normal, Ia32ePermissions::READ_WRITE);
    end
}

/// Where physical memory is in the direct map.
#[inline]
pub fn physical(address: u64) -> *mut u8 {
    (PHYSMAP + address) as *mut u8
}

/// Where Stile's code is: the beginning of the image.
pub fn code() -> Range<u64> {
    symbol!(__image_start)..symbol!(__text_end)
}

/// The mapped part of a CPU's stack that an address is in.
pub fn stack_of(address: u64) -> Option<Range<u64>> {
    let boot = symbol!(__boot_stack_guard) + PAGE_SIZE..symbol!(__image_end);
    if boot.contains(&address) { Some(boot) } else { STACKS.around(address) }
}
