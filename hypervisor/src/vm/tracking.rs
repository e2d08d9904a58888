//! Tracking of the pages of RAM that a VM writes while it is copied (crate `paging`, `changes`).
//!
//! Blocks are read-only while they are tracked. The first write to a page faults: Stile divides the block, marks the page dirty and
//! makes it writable. Each collection reserves a table for each new block, at most 1/512 of RAM. Without memory for one, the block
//! becomes writable as a whole, and counts as changed as a whole.
//!
//! Once the copy has ended, the next write to a block makes all of it writable, and its table is freed.

use core::sync::atomic::Ordering;

use stile_paging::PAGE_SIZE;
use stile_paging::first_touch::BLOCK_SIZE;

use super::Vm;
use crate::arch::Arch;
use crate::arch::contract::{Snapshots, VmPart};
use crate::arena;

/// Instructions, roughly, after which [`Vm::track`] ends.
const AT_ONCE: usize = 120_000;
/// Instructions to skip a block.
const PASSED: usize = 100;
/// Instructions to protect a block that is mapped as a whole, and to reserve a table.
const WHOLE: usize = 2_000;
/// Instructions to protect a block that is mapped by pages.
const DIVIDED: usize = 50_000;
/// Instructions to protect a page.
const PAGE: usize = 500;

impl Vm {
    /// Makes writable blocks read-only from an address on, and pages that were written since the last call: these are pending then.
    /// Returns their number, and the address from which to go on. No vCPU of the VM is loaded, and
    /// [`Platform::forget_translations`](crate::arch::contract::Platform::forget_translations) follows.
    pub(super) fn track(&self, from: u64) -> (u32, Option<u64>) {
        // L2s of VMs that could not be saved would wait for tracked blocks to become writable.
        debug_assert!(Arch::obstacle(self).is_none(), "a VM that can't be saved is tracked");
        self.ram.was_tracked.store(true, Ordering::Relaxed);
        self.ram.is_copied.store(true, Ordering::Relaxed);
        let end = self.ram.base + self.ram.blocks.len() as u64 * BLOCK_SIZE;
        let mut at = from.max(self.ram.base) & !(BLOCK_SIZE - 1);
        let (mut pages, mut work) = (0, 0);
        while at < end && work < AT_ONCE {
            let Some((block, changes)) = self.ram.block_and_changes(at) else { break };
            work += PASSED;
            if block.is_tracked() {
                let most = AT_ONCE.saturating_sub(work) / PAGE + 1;
                let count = changes.collect(most, |run| self.protect(at + run.start, at + run.end, |_| ()));
                (pages, work) = (pages + count, work + count * PAGE);
                if count == most {
                    break;
                }
            } else if block.collect() {
                changes.begin();
                self.protect(at, at + BLOCK_SIZE, |is_whole| work += if is_whole { WHOLE } else { DIVIDED });
                pages += (BLOCK_SIZE / PAGE_SIZE) as usize;
            }
            at += BLOCK_SIZE;
        }
        // With the tables that were set aside.
        self.memory.store(self.ram.size() + arena::of_vm(self.number).size(), Ordering::Relaxed);
        (pages as u32, (at < end).then_some(at))
    }

    /// Protects the parts of a range that are in RAM, and calls `with` whether each was mapped as a whole.
    fn protect(&self, start: u64, end: u64, mut with: impl FnMut(bool)) {
        for part in self.ram.parts(start, end) {
            let is_whole = self.arch.protect_ram(&part);
            let tables = self.ram.tables.load(Ordering::Relaxed);
            if is_whole && tables < self.ram.blocks.len() as u64 && arena::of_vm(self.number).spare_table() {
                self.ram.tables.store(tables + 1, Ordering::Relaxed);
            }
            with(is_whole);
        }
    }

    /// Handles a guest's write to read-only memory: its page is dirty and writable from here on. Returns false if the address is
    /// not in RAM that is or was tracked. The guest retries the access.
    pub fn handle_write_fault(&self, gpa: u64) -> bool {
        if !self.was_tracked() || !self.ram.contains(gpa) {
            return false;
        }
        let Some((block, changes)) = self.ram.block_and_changes(gpa) else { return false };
        if !block.is_tracked() {
            // Another vCPU was faster.
            return block.is_writable();
        }
        // The page is dirty before any vCPU can write to it: the copy is either later than the write, or repeated.
        if self.ram.is_copied.load(Ordering::Relaxed) {
            changes.set_dirty(gpa);
            if self.arch.permit_page(gpa & !(PAGE_SIZE - 1)) {
                return true;
            }
        }
        let start = gpa & !(BLOCK_SIZE - 1);
        self.ram.parts(start, start + BLOCK_SIZE).for_each(|part| self.arch.permit_ram(&part));
        // Afterwards: in a writable block no vCPU finds a page read-only, except by a translation from before.
        block.untrack();
        true
    }

    /// Whether an address is in RAM.
    #[allow(dead_code, reason = "not every architecture's faults need it")]
    pub fn is_ram(&self, gpa: u64) -> bool {
        self.ram.contains(gpa)
    }

    /// Whether writes to its RAM are tracked, or were.
    pub fn was_tracked(&self) -> bool {
        self.ram.was_tracked.load(Ordering::Relaxed)
    }

    /// Marks the page of an address dirty, if its block is tracked: Stile is about to access it for the guest, and may write.
    pub(super) fn mark_dirty(&self, gpa: u64) {
        if let Some((_, changes)) = self.ram.block_and_changes(gpa).filter(|(block, _)| block.is_tracked()) {
            changes.set_dirty(gpa);
        }
    }

    /// Whether an address is in RAM, in a block that is filled and mapped.
    #[allow(dead_code, reason = "not every architecture has accesses that need it")]
    pub fn is_mapped(&self, gpa: u64) -> bool {
        self.ram.block(gpa).is_some_and(|block| block.is_writable() || block.is_tracked())
    }

    /// The copy has ended, or was abandoned.
    pub fn end_copy(&self) {
        self.ram.is_copied.store(false, Ordering::Relaxed);
    }
}
