//! L1's second stages: tables in free memory.

use core::sync::atomic::{AtomicU64, Ordering::*};

use payload::instruction;
use payload::mmu::Table;
use payload::prelude::*;

use crate::hcr::HCR;
use crate::layout::CODE;

/// Entry attributes: normal memory, inner shareable, accessed.
pub const NORMAL: u64 = 0xF << 2 | 3 << 8 | 1 << 10;
/// Entry attribute: S2AP, read.
pub const READ: u64 = 1 << 6;
/// Entry attribute: S2AP, write.
pub const WRITE: u64 = 1 << 7;
/// Entry attribute: not executable.
pub const NO_FETCH: u64 = 1 << 54;
/// All permissions.
pub const ALL: u64 = NORMAL | READ | WRITE;
/// VTCR_EL2: T0SZ 25, start level 1, write-back inner shareable walks, 4 KiB, 8 bits of VMID. [`vtcr`] adds PS.
const VTCR: u64 = 1 << 31 | 3 << 12 | 1 << 10 | 1 << 8 | 1 << 6 | 25;

/// Allocated free memory.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Allocates zeroed pages and returns their address. They are never freed.
///
/// # Panics
/// If too few are free.
pub fn pages(count: u64) -> u64 {
    let free = machine::free_ram();
    // Tables of 64 KiB are tried, too.
    let start = free.start.next_multiple_of(0x1_0000) + 4096 * TAKEN.fetch_add(count, AcqRel);
    assert!(start + 4096 * count <= free.end, "no memory for tables");
    // SAFETY: free RAM after the image; no other reference to these pages exists.
    unsafe { core::ptr::write_bytes(start as *mut u8, 0, 4096 * count as usize) };
    start
}

/// VTCR_EL2 for these tables.
pub fn vtcr() -> u64 {
    VTCR | (mrs!("ID_AA64MMFR0_EL1") & 15).min(5) << 16
}

/// A table, by its address.
fn table(address: u64) -> &'static Table {
    // SAFETY: a page allocated by `pages`; `Table` consists of atomics.
    unsafe { &*(address as *const Table) }
}

/// Writes an entry of the table at this address.
pub fn set_entry(at: u64, index: usize, entry: u64) {
    table(at).set(index, entry);
}

/// A second stage of 39 bits, from level 1.
#[derive(Clone, Copy)]
pub struct Stage2 {
    /// The table of level 1.
    pub root: u64,
    /// VTTBR_EL2.VMID.
    pub vmid: u64,
}

impl Stage2 {
    /// An empty one.
    pub fn new(vmid: u64) -> Self {
        Self { root: pages(1), vmid }
    }

    /// VTTBR_EL2.
    pub fn vttbr(&self) -> u64 {
        self.root | self.vmid << 48
    }

    /// Makes it the current CPU's second stage.
    pub fn activate(&self) {
        msr!("VTCR_EL2", vtcr());
        msr!("VTTBR_EL2", self.vttbr());
    }

    /// The place of the entry for an address at a level, with the tables that lead there.
    fn entry(&self, ipa: u64, level: u32) -> (&'static Table, usize) {
        let index = |level: u32| (ipa >> (39 - 9 * level) & 511) as usize;
        let mut at = table(self.root);
        for level in 1..level {
            let mut entry = at.0[index(level)].load(Acquire);
            if entry & 3 != 3 {
                entry = pages(1) | 3;
                at.set(index(level), entry);
            }
            at = table(entry & 0xFFFF_FFFF_F000);
        }
        (at, index(level))
    }

    /// Writes the entry of an address at a level, without TLB maintenance.
    pub fn set(&self, ipa: u64, level: u32, entry: u64) {
        let (table, index) = self.entry(ipa, level);
        table.set(index, entry);
    }

    /// Writes the root's entry for an address at a level, if a loop leads back to the root. That of L2's code
    /// is preserved.
    pub fn set_in_root(&self, ipa: u64, level: u32, entry: u64) {
        let index = ipa >> (39 - 9 * level) & 511;
        if index != CODE >> 30 {
            table(self.root).set(index as usize, entry);
        }
    }

    /// Maps a page.
    pub fn page(&self, ipa: u64, output: u64, attributes: u64) {
        self.set(ipa, 3, output | attributes | 3);
    }

    /// Maps a block of level 1 or 2.
    pub fn block(&self, ipa: u64, level: u32, output: u64, attributes: u64) {
        self.set(ipa, level, output | attributes | 1);
    }
}

/// Invalidates all CPUs' translations of an address in the current VMID.
pub fn forget(ipa: u64) {
    // SAFETY: TLB maintenance drops cached translations only, and the tables map what they mapped before.
    with_guest_regime(|| unsafe {
        core::arch::asm!("tlbi ipas2e1is, {}", "dsb ish", "tlbi vmalle1is", in(reg) ipa >> 12, options(nostack, preserves_flags));
    });
}

/// Forgets all of the current VMID.
pub fn forget_all() {
    with_guest_regime(|| instruction!("tlbi vmalls12e1is"));
}

/// With HCR_EL2.TGE clear: EL1's TLB maintenance would mean the host's translations otherwise.
pub fn with_guest_regime(code: impl FnOnce()) {
    msr!("HCR_EL2", HCR);
    instruction!("dsb ishst");
    code();
    instruction!("dsb ish");
    msr!("HCR_EL2", payload::entry::HCR);
}
