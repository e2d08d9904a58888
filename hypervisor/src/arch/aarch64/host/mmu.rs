//! Stile's stage-1 tables at EL2 ([`crate::address_space`]). The code that enables the MMU is also mapped at its
//! physical address. SCTLR_EL2.WXN ensures that no page is both writable and executable.

use core::cell::UnsafeCell;
use core::convert::Infallible;

use stile_paging::PAGE_SIZE;
use stile_paging::registers::PaRange;
use stile_paging::table::{El2, El2Permissions, Geometry, MemoryType, PageTable, TableMemory, TableRead};

use super::features;
use super::sysreg::{isb, read_sysreg, write_sysreg};
use crate::address_space::{self, AddressSpace, Span};
use crate::stacks::Stacks;

/// Format of the tables.
pub type Format = El2;
/// Permissions of Stile's mappings.
pub type Permissions = El2Permissions;
/// Memory of the tables.
pub type Tables = PoolMemory;

/// Start of the direct map.
pub const PHYSMAP: u64 = 0x4000_0000_0000;
/// Start of device mappings.
pub const DEVICES: u64 = 0x6000_0000_0000;
const FIRST_STACK: u64 = 0x7f00_0000_0000;
/// Start of the CPUs' stacks.
pub const STACKS: Stacks = Stacks::at(FIRST_STACK);

unsafe extern "C" {
    static __boot_text_end: u8;
    fn use_tables(root: u64, to_physical: u64);
}

/// Maximum number of tables of EL2's address space.
const TABLES: usize = 96;

#[repr(C, align(4096))]
struct Pool(UnsafeCell<[[u64; 512]; TABLES]>);

// SAFETY: accessed only through the one `PoolMemory`, which the address space keeps behind its lock.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool(UnsafeCell::new([[0; 512]; TABLES]));

/// Tables are in the image, so that they can be built before there is a direct map.
pub struct PoolMemory {
    used: usize,
    /// Physical address of the pool.
    base: u64,
}

impl PoolMemory {
    fn entry(&self, table: u64, index: usize) -> *mut u64 {
        let number = (table.wrapping_sub(self.base) / PAGE_SIZE) as usize;
        assert!(number < TABLES && index < 512, "a table of EL2's outside its pool");
        // SAFETY: the index was checked to be in bounds.
        unsafe { POOL.0.get().cast::<u64>().add(number * 512 + index) }
    }
}

impl TableRead for PoolMemory {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        // SAFETY: `entry` returns a pointer into the pool.
        Ok(unsafe { self.entry(table, index).read_volatile() })
    }
}

impl TableMemory for PoolMemory {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        // SAFETY: `entry` returns a pointer into the pool; AtomicU64 has the layout of u64.
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

    // EL2's mappings are permanent.
    fn free(&mut self, _table: u64) {}
}

/// Returns the end of the physical addresses that Stile maps, memory or devices: the CPU's limit, or that of Stile's address space.
pub fn reach() -> u64 {
    const ROOM: u64 = FIRST_STACK - DEVICES;
    const _: () = assert!(ROOM <= DEVICES - PHYSMAP);
    (1 << PaRange::from_mmfr0(read_sysreg!(ID_AA64MMFR0_EL1)).bits()).min(ROOM)
}

/// Builds Stile's address space and switches to it. `ram`, `image` and `blob` are physical addresses.
pub fn setup(ram: &[Span], image: &Span, blob: &Span) {
    let start = address_space::image_start();
    let to_physical = image.start.wrapping_sub(start);
    let format = if features::get().vhe { El2::Vhe } else { El2::Nvhe };
    let geometry = Geometry::stage1(48, PaRange::from_mmfr0(read_sysreg!(ID_AA64MMFR0_EL1))).expect("48 bits is a size that there is");
    let mut memory = PoolMemory { used: 0, base: (POOL.0.get() as u64).wrapping_add(to_physical) };
    let root = memory.allocate().expect("the pool is not empty");
    let table = PageTable::new(format, geometry, root).expect("the pool is aligned");
    let mut space = AddressSpace::new(table, memory, ram, image, blob);
    let boot_code = &raw const __boot_text_end as u64 - start;
    space.map(image.start, image.start, boot_code, MemoryType::Normal, El2Permissions::CODE);
    let root = space.install();
    // SAFETY: the new tables map everything in use: the image at the same addresses, and its boot code at its
    // physical address.
    unsafe { use_tables(root, to_physical) };
}

/// Makes new entries visible to table walks.
pub fn complete_map() {
    // SAFETY: a barrier orders accesses, and changes neither memory nor a register that the compiler uses.
    unsafe { core::arch::asm!("dsb ishst", "isb", options(nostack, preserves_flags)) };
}

/// Sets SCTLR_EL2.WXN on this CPU: writable pages are not executable, whatever the tables say.
pub fn forbid_writable_code() {
    write_sysreg!(SCTLR_EL2, read_sysreg!(SCTLR_EL2) | 1 << 19);
    isb();
    // WXN may be held in TLBs (Arm ARM, System register fields that may be cached in a TLB).
    // SAFETY: TLBI drops cached translations only: the tables stay valid, and the next walk reads them, so that
    // no reference of Stile's loses its mapping.
    unsafe { core::arch::asm!("tlbi alle2", "dsb nsh", "isb", options(nostack, preserves_flags)) };
}
