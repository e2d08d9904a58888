//! Population of a VM's RAM at first touch, block by block, and its reversal.

use core::sync::atomic::Ordering;

use stile_paging::PAGE_SIZE;
use stile_paging::first_touch::{BLOCK_SIZE, Block, Claim, STEP_SIZE, STEPS};
use stile_paging::frames::Piece;

use super::Vm;
use super::ram::NOT_FILLING;
use crate::arch::Arch;
use crate::arch::contract::{Host, VmPart};
use crate::console::log;

/// Number of blocks that one call of [`Vm::drain_files`] unmaps.
const DRAINED_AT_ONCE: usize = 64;

/// Number of blocks that one call of [`Vm::fill_ram`], [`Vm::clear_ram`] or [`Vm::drain_files`] passes over at most. Each
/// costs some ten instructions.
const PASSED_AT_ONCE: usize = 4096;

impl Vm {
    /// Whether an address is in RAM, in a block that is filled, mapped and writable.
    #[inline]
    pub fn is_writable(&self, gpa: u64) -> bool {
        self.ram.block(gpa).is_some_and(Block::is_writable)
    }

    /// Handles a guest access to an unmapped address: does a bounded part of filling and mapping its block, less if another
    /// CPU waits for it. Returns false if the address is not in RAM; otherwise the guest retries the access, which may fault
    /// again.
    pub fn touch(&self, gpa: u64) -> bool {
        let Some((block, pages)) = self.ram.block_and_pages(gpa).filter(|_| self.ram.contains(gpa)) else { return false };
        let start = gpa & !(BLOCK_SIZE - 1);
        let (step, again, early) = match block.claim() {
            Claim::Fill { step, again, early } => (step, again, early),
            Claim::Given => return self.touch_given(gpa),
            Claim::Full | Claim::Busy => return true,
        };
        let bytes = if self.ram.has_files(start) { Arch::COPIED_AT_ONCE } else { Arch::ZEROED_AT_ONCE };
        let next = STEPS.min(step + (bytes / STEP_SIZE) as u8);
        let (from, to) = (u64::from(step) * STEP_SIZE, u64::from(next) * STEP_SIZE);
        let filled = if early {
            pages.gaps(from, to).try_fold(to, |_, (gap, end)| {
                if gap != from && block.is_waited() {
                    return Err(gap);
                }
                let at = self.ram.write(start + gap, start + end, again, || block.is_waited()) - start;
                if at < end { Err(at) } else { Ok(to) }
            })
        } else {
            Ok(self.ram.write(start + from, start + to, again, || block.is_waited()) - start)
        };
        let filled = filled.unwrap_or_else(|at| at);
        if filled < to {
            block.release_between(pages, filled);
            return true;
        }
        if next < STEPS {
            block.release(next);
            return true;
        }
        for part in self.ram.parts(start, start + BLOCK_SIZE) {
            if let Err(error) = self.arch.map_ram(&part) {
                // The tables were allocated with the VM.
                log!("{}: RAM at {:#x} can't be mapped: {error:?}", self.name, part.gpa);
            }
        }
        block.complete(pages);
        true
    }

    /// The parts of a range that are in RAM.
    #[allow(dead_code, reason = "not every architecture has VMs that access others' RAM")]
    pub fn ram_parts(&self, start: u64, end: u64) -> impl Iterator<Item = Piece> {
        self.ram.parts(start, end)
    }

    /// The parts of RAM in the block that contains an address, if the block is writable.
    #[allow(dead_code, reason = "not every architecture has VMs that access others' RAM")]
    pub fn filled_parts(&self, gpa: u64) -> impl Iterator<Item = Piece> {
        let start = gpa & !(BLOCK_SIZE - 1);
        let end = if self.is_writable(gpa) { start + BLOCK_SIZE } else { start };
        self.ram_parts(start, end)
    }

    /// Does a bounded part of filling and mapping all of RAM. Returns whether all of it is mapped. No vCPU runs.
    pub fn fill_ram(&self) -> bool {
        let mut index = match self.ram.unfilled.load(Ordering::Relaxed) {
            NOT_FILLING => 0,
            index => index,
        };
        let last = index.saturating_add(PASSED_AT_ONCE);
        while index < last && self.ram.blocks.get(index).is_some_and(Block::is_filled) {
            index += 1;
        }
        let all = index >= self.ram.blocks.len();
        if !all && index < last && !self.touch(self.ram.base + index as u64 * BLOCK_SIZE) {
            // A hole between pieces.
            index += 1;
        }
        self.ram.unfilled.store(index, Ordering::Relaxed);
        all
    }

    /// Clears a bounded part of RAM, so that its next owner finds no data of this guest. Returns whether all of it is
    /// clear. The VM is being destroyed: nothing else accesses its memory.
    pub fn clear_ram(&self) -> bool {
        const AT_ONCE: u64 = Arch::ZEROED_AT_ONCE;
        const _: () = assert!(BLOCK_SIZE.is_multiple_of(AT_ONCE));
        let end = self.ram.base + self.ram.blocks.len() as u64 * BLOCK_SIZE;
        let mut at = self.ram.cleared.load(Ordering::Relaxed);
        let last = end.min(at + PASSED_AT_ONCE as u64 * AT_ONCE);
        while at < last && self.ram.block(at).is_none_or(Block::is_untouched) {
            at += AT_ONCE;
        }
        if at == last && at < end {
            self.ram.cleared.store(at, Ordering::Relaxed);
            return false;
        }
        for part in self.ram.parts(at, end.min(at + AT_ONCE)) {
            // SAFETY: the part is in this VM's RAM, in the direct map. No vCPU of the VM runs, and a VM with functions is
            // never destroyed.
            unsafe { Arch::zero(Arch::physical(part.pa), part.size as usize) };
        }
        self.ram.cleared.store(at + AT_ONCE, Ordering::Relaxed);
        at + AT_ONCE >= end
    }

    /// Whether [`Vm::fill_ram`] was called since [`Vm::rewind_fill`].
    pub fn is_filling(&self) -> bool {
        self.ram.unfilled.load(Ordering::Relaxed) != NOT_FILLING
    }

    /// Makes the next [`Vm::fill_ram`] check all blocks again, because drained ones have to be filled again.
    pub fn rewind_fill(&self) {
        self.ram.unfilled.store(NOT_FILLING, Ordering::Relaxed);
    }

    /// Fills the page at an address that Stile is about to access for the guest, if it is in RAM. Does not map the
    /// block: one exit may access some 70 pages in different blocks, all of which would have to be filled.
    #[inline]
    #[allow(dead_code, reason = "not every architecture has such accesses")]
    pub fn fill_page(&self, gpa: u64) {
        if !self.is_writable(gpa) {
            self.fill_page_now(gpa);
        }
    }

    #[cold]
    fn fill_page_now(&self, gpa: u64) {
        let Some((block, pages)) = self.ram.block_and_pages(gpa).filter(|_| self.ram.contains(gpa)) else { return };
        // A claim for a page ends with that page filled, and others then need none for it: a block has a bounded number of claims.
        while !block.has_page(pages, gpa) {
            match block.claim() {
                Claim::Full => return self.mark_dirty(gpa),
                // No VM with a balloon has accesses of Stile's.
                Claim::Given => return,
                // Another CPU holds the claim for a piece of `touch`, or for one call of this function.
                Claim::Busy => {
                    _ = block.wait();
                    core::hint::spin_loop();
                }
                Claim::Fill { step, again, .. } => {
                    let page = gpa & !(PAGE_SIZE - 1);
                    return block.fill_early(pages, step, page, || _ = self.ram.write(page, page + PAGE_SIZE, again, || false));
                }
            }
        }
    }

    /// Unmaps blocks that files are loaded into, so that the files are loaded again. Returns whether all are
    /// unmapped. No vCPU runs; one is loaded on this CPU.
    pub fn drain_files(&self) -> bool {
        let mut drained = 0;
        let mut passed = 0;
        let (mut load, mut block) = *self.ram.undrained.lock();
        let all = loop {
            let Some(of) = self.ram.loads.get(load) else { break true };
            let start = (of.gpa & !(BLOCK_SIZE - 1)) + block as u64 * BLOCK_SIZE;
            if start >= of.gpa + of.mem_len {
                (load, block) = (load + 1, 0);
                continue;
            }
            if drained == DRAINED_AT_ONCE || passed == PASSED_AT_ONCE {
                break false;
            }
            (block, passed) = (block + 1, passed + 1);
            let Some((state, pages)) = self.ram.block_and_pages(start) else { continue };
            if state.drain(pages) {
                self.arch.unmap_ram(start, BLOCK_SIZE);
                // Not before: another VM that serves this one's devices may touch the block at any time.
                state.release(0);
                drained += 1;
            }
        };
        *self.ram.undrained.lock() = if all { (0, 0) } else { (load, block) };
        if drained != 0 {
            self.arch.complete_unmap();
        }
        all
    }

    /// Makes the next [`Vm::drain_files`] begin with the first file.
    pub fn rewind_drain(&self) {
        *self.ram.undrained.lock() = (0, 0);
    }
}
