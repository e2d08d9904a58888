//! EL2's own address space.
//!
//! | from | what | how |
//! | --- | --- | --- |
//! | the image's physical address | the code that turns the MMU on | execute |
//! | [`PHYSMAP`] | memory, at its physical address above this; not the image | read and write; the blob: read |
//! | [`DEVICES`] | devices that Stile drives, likewise | read and write |
//! | [`STACKS`] | each CPU's stack and block, with an unmapped page under it | read and write |
//! | `IMAGE_VA` (image.ld) | code; constants; data | execute; read; read and write |
//!
//! Nothing is both writable and executable (SCTLR_EL2.WXN sees to that, too), and nothing is mapped twice but the first row.

use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::ops::Range;

use stile_paging::PAGE_SIZE;
use stile_paging::registers::PaRange;
use stile_paging::table::{Attributes, El2, El2Permissions, Geometry, Mapping, MemoryType, PageTable, TableMemory, TableRead};
use stile_sched::lock::TicketLock;

use super::board::{Board, Span};
use super::features;
use super::sysreg::{isb, read_sysreg, write_sysreg};
use crate::stacks::Stacks;

/// Where the direct map begins.
pub const PHYSMAP: u64 = 0x4000_0000_0000;
/// Where devices' registers are.
pub const DEVICES: u64 = 0x6000_0000_0000;
/// Where the CPUs' stacks are.
pub const STACKS: Stacks = Stacks::at(0x7f00_0000_0000);

unsafe extern "C" {
    static __image_start: u8;
    static __boot_text_end: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __boot_stack_guard: u8;
    static __image_end: u8;
    fn use_tables(root: u64, to_physical: u64);
}

/// Address of a symbol of the linker script.
macro_rules! symbol {
    ($name:ident) => {
        &raw const $name as u64
    };
}

/// How many tables EL2's address space may take.
const TABLES: usize = 96;

#[repr(C, align(4096))]
struct Pool(UnsafeCell<[[u64; 512]; TABLES]>);

// SAFETY: reached only through `ADDRESS_SPACE`, which is behind a lock.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool(UnsafeCell::new([[0; 512]; TABLES]));

/// EL2's tables lie in the image, so that they can be made before there is a direct map.
struct PoolMemory {
    used: usize,
    /// Physical address of the pool.
    base: u64,
}

impl PoolMemory {
    fn entry(&self, table: u64, index: usize) -> *mut u64 {
        let number = (table.wrapping_sub(self.base) / PAGE_SIZE) as usize;
        assert!(number < TABLES && index < 512, "a table of EL2's outside its pool");
        // SAFETY: in bounds, as was just checked.
        unsafe { POOL.0.get().cast::<u64>().add(number * 512 + index) }
    }
}

impl TableRead for PoolMemory {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        // SAFETY: `entry` is in the pool.
        Ok(unsafe { self.entry(table, index).read_volatile() })
    }
}

impl TableMemory for PoolMemory {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        // SAFETY: `entry` is in the pool; AtomicU64 has the layout of u64.
        unsafe { core::sync::atomic::AtomicU64::from_ptr(self.entry(table, index)) }
            .store(descriptor, core::sync::atomic::Ordering::Release);
    }

    fn allocate(&mut self) -> Option<u64> {
        let number = self.used;
        if number == TABLES {
            return None;
        }
        self.used += 1;
        Some(self.base + number as u64 * PAGE_SIZE)
    }

    // EL2's mappings are made while booting and stay.
    fn free(&mut self, _table: u64) {}
}

struct AddressSpace {
    table: PageTable<El2>,
    memory: PoolMemory,
    /// Physical less virtual address of the image.
    to_physical: u64,
}

static ADDRESS_SPACE: TicketLock<Option<AddressSpace>> = TicketLock::new(None);

impl AddressSpace {
    fn map(&mut self, address: u64, output: u64, size: u64, memory: MemoryType, permissions: El2Permissions) {
        let mapping = Mapping { address, output, size, attributes: Attributes { memory, permissions } };
        if let Err(error) = self.table.map(&mut self.memory, mapping) {
            panic!("EL2 can't map {output:#x} at {address:#x}, {size:#x} bytes: {error:?}");
        }
        // SAFETY: a barrier: walks must see the new entries.
        unsafe { core::arch::asm!("dsb ishst", "isb", options(nostack, preserves_flags)) };
    }
}

/// Physical extent of Stile itself, without the blob.
pub fn image(image_pa: u64) -> Span {
    image_pa..image_pa + (symbol!(__image_end) - symbol!(__image_start))
}

/// Makes EL2's address space and changes to it. `blob` is where the blob may be: from the image's end to the end of what was loaded.
pub fn setup(board: &Board, image_pa: u64, blob: &Span) {
    let to_physical = image_pa.wrapping_sub(symbol!(__image_start));
    let pool = (POOL.0.get() as u64).wrapping_add(to_physical);
    let format = if features::get().vhe { El2::Vhe } else { El2::Nvhe };
    let geometry = Geometry::stage1(48, PaRange::from_mmfr0(read_sysreg!("id_aa64mmfr0_el1"))).expect("48 bits is a size that there is");
    let mut memory = PoolMemory { used: 0, base: pool };
    let root = memory.allocate().expect("the pool is not empty");
    let table = PageTable::new(format, geometry, root).expect("the pool is aligned");
    let mut space = AddressSpace { table, memory, to_physical };

    // The image, part by part.
    let parts = [
        (symbol!(__image_start), symbol!(__text_end), El2Permissions::CODE),
        (symbol!(__text_end), symbol!(__rodata_end), El2Permissions::READ),
        (symbol!(__rodata_end), symbol!(__boot_stack_guard), El2Permissions::READ_WRITE),
        (symbol!(__boot_stack_guard) + PAGE_SIZE, symbol!(__image_end), El2Permissions::READ_WRITE),
    ];
    for (start, end, permissions) in parts {
        space.map(start, start.wrapping_add(to_physical), end - start, MemoryType::Normal, permissions);
    }
    space.map(image_pa, image_pa, symbol!(__boot_text_end) - symbol!(__image_start), MemoryType::Normal, El2Permissions::CODE);

    // Memory, but for the image; the blob can't be changed.
    let image = image(image_pa);
    for ram in &board.ram {
        let mut at = ram.start.next_multiple_of(PAGE_SIZE);
        let end = ram.end & !(PAGE_SIZE - 1);
        for (hole, permissions) in [(&image, None), (blob, Some(El2Permissions::READ))] {
            if hole.start >= end || hole.end <= at {
                continue;
            }
            if hole.start > at {
                space.map(PHYSMAP + at, at, hole.start - at, MemoryType::Normal, El2Permissions::READ_WRITE);
            }
            at = hole.end.min(end);
            if let Some(permissions) = permissions {
                let start = hole.start.max(ram.start);
                space.map(PHYSMAP + start, start, at - start, MemoryType::Normal, permissions);
            }
        }
        if at < end {
            space.map(PHYSMAP + at, at, end - at, MemoryType::Normal, El2Permissions::READ_WRITE);
        }
    }

    let root = space.table.root();
    *ADDRESS_SPACE.lock() = Some(space);
    // SAFETY: the new tables map all that is in use: the image as it was, and its boot code at its physical address.
    unsafe { use_tables(root, to_physical) };
}

/// Sets SCTLR_EL2.WXN on this CPU: what is writable can't be executed, whatever the tables say.
pub fn forbid_writable_code() {
    write_sysreg!("sctlr_el2", read_sysreg!("sctlr_el2") | 1 << 19);
    isb();
    // WXN may be held in TLBs (Arm ARM, System register fields that may be cached in a TLB).
    // SAFETY: forgetting translations is always right.
    unsafe { core::arch::asm!("tlbi alle2", "dsb nsh", "isb", options(nostack, preserves_flags)) };
}

/// Root of the tables, for a CPU that starts.
pub fn root() -> u64 {
    ADDRESS_SPACE.lock().as_ref().expect("set up").table.root()
}

/// Physical address of something in the image.
pub fn image_to_physical(address: u64) -> u64 {
    address.wrapping_add(ADDRESS_SPACE.lock().as_ref().expect("set up").to_physical)
}

/// Maps a device's registers, if they are not yet, and returns their virtual address.
pub fn device(registers: Span) -> usize {
    let start = registers.start & !(PAGE_SIZE - 1);
    let end = registers.end.next_multiple_of(PAGE_SIZE);
    let mut space = ADDRESS_SPACE.lock();
    let space = space.as_mut().expect("set up");
    if space.table.translate(&space.memory, DEVICES + start).is_err() {
        space.map(DEVICES + start, start, end - start, MemoryType::Device, El2Permissions::READ_WRITE);
    }
    (DEVICES + registers.start) as usize
}

/// Maps `memory`, [`crate::stacks::SIZE`] bytes, as a CPU's stack and block, and returns the address of its upper end.
pub fn stack(cpu: usize, memory: u64) -> u64 {
    let Range { start, end } = STACKS.of_cpu(cpu);
    let mut space = ADDRESS_SPACE.lock();
    space.as_mut().expect("set up").map(start, memory, end - start, MemoryType::Normal, El2Permissions::READ_WRITE);
    end
}

/// Where physical memory is in the direct map.
#[inline]
pub fn physical(address: u64) -> *mut u8 {
    (PHYSMAP + address) as *mut u8
}

/// The bytes that follow the image: the blob's header, if there is a blob. Only while the first tables are in use.
pub fn after_image(length: usize) -> &'static [u8] {
    // SAFETY: boot.S maps the 2 MiB block that these bytes begin in, and they are fewer than what is left of it: the image ends at a page.
    unsafe { core::slice::from_raw_parts(symbol!(__image_end) as *const u8, length) }
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
