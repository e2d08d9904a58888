//! First-stage translation: identity mapping, and windows to all other addresses.
//!
//! | virtual address | mapping |
//! | --- | --- |
//! | the first GiB | devices, identity |
//! | the next 7 GiB | RAM, identity, writable and executable |
//! | [`PAGES`] | 4 KiB pages for tests |
//! | the last 8 GiB | a window per CPU, to any GiB of physical addresses |

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{board, instruction, smp};

/// A translation table of any level.
#[repr(C, align(4096))]
pub struct Table(pub [AtomicU64; 512]);

impl Table {
    /// A table that maps nothing.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }

    /// The table's address, for a register or a table entry.
    pub fn address(&self) -> u64 {
        self as *const Self as u64
    }

    /// Returns an entry.
    pub fn get(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }

    /// Replaces an entry; the caller does the TLB maintenance.
    pub fn set(&self, index: usize, entry: u64) {
        self.0[index].store(entry, Ordering::Release);
        instruction!("dsb ishst");
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

/// Memory type of a mapping: an index into [`MAIR`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Memory {
    /// Device-nGnRnE.
    Device = 0,
    /// Normal, write-back.
    Normal = 1,
    /// Device-nGnRE.
    DeviceEarly = 2,
    /// Normal, not cacheable.
    Uncached = 3,
}

const BLOCK: u64 = 0b01;
/// An entry that points to the next table.
pub const TABLE: u64 = 0b11;
const PAGE: u64 = 0b11;
const ACCESSED: u64 = 1 << 10;
const INNER_SHAREABLE: u64 = 3 << 8;
/// Entry attribute: EL0 access.
pub const EL0: u64 = 1 << 6;
/// Entry attribute: not global.
pub const NOT_GLOBAL: u64 = 1 << 11;
const NOT_EXECUTABLE: u64 = 1 << 53 | 1 << 54;

/// MAIR_EL1 for [`Memory`].
pub const MAIR: u64 = 0x44_04_FF_00;
/// TCR_EL1: T0SZ 25 (39 bits), write-back inner shareable walks, 4 KiB granule, no TTBR1 walks. The start code adds IPS.
pub const TCR: u64 = 25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23;
/// SCTLR_EL1: MMU, caches, stack alignment check, and the bits that are RES1 in Armv8.0.
pub const SCTLR: u64 = 0x30D0_0800 | 1 | 1 << 2 | 1 << 3 | 1 << 12;

/// Entry of [`ROOT`] for test pages.
pub const PAGES_ENTRY: usize = 480;
/// Virtual address of the GiB of test pages.
pub const PAGES: u64 = (PAGES_ENTRY as u64) << 30;
const FIRST_WINDOW: usize = 512 - board::MAX_CPUS;

const fn attributes(memory: Memory) -> u64 {
    let execute = if matches!(memory, Memory::Device | Memory::DeviceEarly) { NOT_EXECUTABLE } else { 0 };
    (memory as u64) << 2 | ACCESSED | INNER_SHAREABLE | execute
}

/// A level 1 entry for the GiB at `address`.
pub const fn gigabyte(address: u64, memory: Memory) -> u64 {
    address | attributes(memory) | BLOCK
}

/// A level 3 entry for the page at `address`.
pub const fn page(address: u64, memory: Memory) -> u64 {
    address | attributes(memory) | PAGE
}

const fn root() -> Table {
    let mut table = Table::new();
    table.0[0] = AtomicU64::new(gigabyte(0, Memory::Device));
    let mut index = 1;
    while index < 8 {
        table.0[index] = AtomicU64::new(gigabyte((index as u64) << 30, Memory::Normal));
        index += 1;
    }
    table
}

/// The level 1 table with which every CPU starts.
pub static ROOT: Table = root();

/// Invalidates all CPUs' translations of a virtual address, for all address spaces.
pub fn forget(address: u64) {
    // SAFETY: TLB maintenance changes no mapping. The first barrier makes the table write visible to table
    // walks, the second waits for all CPUs.
    unsafe {
        core::arch::asm!("dsb ishst", "tlbi vaae1is, {}", "dsb ish", "isb", in(reg) address >> 12 & 0xFFF_FFFF_FFFF,
            options(nostack, preserves_flags));
    }
}

/// Maps this CPU's window to the GiB around a physical address and returns its virtual address.
pub fn window(physical: u64, memory: Memory, executable: bool) -> u64 {
    const GIGABYTE: u64 = 1 << 30;
    let index = FIRST_WINDOW + smp::this();
    let address = (index as u64) << 30;
    let mut entry = gigabyte(physical & 0xFFFF_FFFF_FFFF & !(GIGABYTE - 1), memory);
    if executable {
        entry &= !NOT_EXECUTABLE;
    }
    // Break before make: D8 "Using break-before-make when updating translation table entries".
    ROOT.set(index, 0);
    forget(address);
    ROOT.set(index, entry);
    instruction!("isb");
    address | physical & (GIGABYTE - 1)
}
