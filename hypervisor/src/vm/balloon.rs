//! RAM that a VM gives back by its balloon.
//!
//! The VM that serves the balloon names pages that the guest has given. Once all pages of a block are given, the block's memory is unmapped
//! from the VM and its servers, cleared, and free for other VMs. A block gets memory again, of any place, when one of its pages is taken
//! back, or touched, if there is any.
//!
//! VMs with PCI functions, which reach all RAM by DMA, have no balloon, and VMs that are served have no EL2, are not saved and not
//! destroyed: nothing but second stages and the VMs' own accesses refers to their RAM.

use core::sync::atomic::Ordering;

use stile_paging::first_touch::BLOCK_SIZE;

use super::Vm;
use crate::arch::Arch;
use crate::arch::contract::{Counter, Host, VmPart};
use crate::console::log_of;
use crate::memory;

/// Blocks are released at most this often, in a second: by each VM.
const RELEASES: u64 = 1000;

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "not every architecture has served devices")]
pub enum Answer {
    /// The page is given, or the guest's again.
    Done,
    /// Too early: the call is to be repeated.
    Again,
    /// The address is not in RAM, or the VM has no balloon.
    Refused,
    /// There is no free memory.
    NoMemory,
}

#[allow(dead_code, reason = "not every architecture has served devices")]
impl Vm {
    /// Begins a life of the guest's driver: pages that were given before, in blocks that still have memory, are the guest's.
    pub fn begin_balloon(&self) {
        let mut balloon = self.ram.balloon.lock();
        balloon.life = balloon.life.wrapping_add(1);
    }

    /// Gives the page at an address back. Releases its block if all of its pages are given: the work of clearing a block.
    pub fn give(&self, gpa: u64) -> Answer {
        let Some((index, given)) = self.balloon_block(gpa) else { return Answer::Refused };
        let start = gpa & !(BLOCK_SIZE - 1);
        let (block, pages) = self.ram.block_and_pages(gpa).expect("a block with given pages");
        // A block that is not wholly RAM is kept.
        let is_whole = self.ram.parts(start, start + BLOCK_SIZE).next().is_some_and(|part| part.size == BLOCK_SIZE);
        {
            let mut balloon = self.ram.balloon.lock();
            if !given.give(gpa, balloon.life) || !is_whole || block.is_given() {
                return Answer::Done;
            }
            let now = Arch::now();
            if now < balloon.next_release || !block.begin_release() {
                // Another CPU fills the block, or maps it.
                return Answer::Again;
            }
            balloon.next_release = now + Arch::frequency() / RELEASES;
        }
        let Some(part) = self.ram.parts(start, start + BLOCK_SIZE).next() else { return Answer::Refused };
        self.arch.unmap_ram(start, BLOCK_SIZE);
        self.arch.complete_unmap();
        // SAFETY: the block was this VM's RAM, in the direct map. It is claimed and unmapped, with its translations invalidated on all CPUs,
        // so that nothing accesses it.
        unsafe { Arch::zero(Arch::physical(part.pa), BLOCK_SIZE as usize) };
        let is_free = memory::free_part(part.pa..part.pa + BLOCK_SIZE);
        if is_free {
            // No memory: any use would be a fault.
            self.ram.moved[index].store(NOWHERE, Ordering::Release);
            self.memory.fetch_sub(BLOCK_SIZE, Ordering::Relaxed);
            self.ram.balloon.lock().blocks += 1;
        }
        block.end_release(pages, is_free);
        Answer::Done
    }

    /// Number of blocks without memory.
    pub fn blocks_given(&self) -> u32 {
        self.ram.balloon.lock().blocks
    }

    /// Takes the page at an address back: its block gets memory if it has none.
    pub fn take_back(&self, gpa: u64) -> Answer {
        let Some((_, given)) = self.balloon_block(gpa) else { return Answer::Refused };
        {
            let _balloon = self.ram.balloon.lock();
            given.take(gpa);
        }
        self.return_block(gpa)
    }

    /// Handles an access to a block without memory: all of its pages are the guest's again. Returns false if there is no memory.
    #[cold]
    pub(super) fn touch_given(&self, gpa: u64) -> bool {
        let Some((_, given)) = self.balloon_block(gpa) else { return false };
        {
            let _balloon = self.ram.balloon.lock();
            given.clear();
        }
        self.return_block(gpa) != Answer::NoMemory
    }

    fn return_block(&self, gpa: u64) -> Answer {
        let Some((block, index)) = self.ram.block(gpa).zip(self.ram.index(gpa)) else { return Answer::Refused };
        if !block.begin_return() {
            return Answer::Done;
        }
        let found = memory::take_aligned(BLOCK_SIZE, BLOCK_SIZE);
        if let Some(found) = &found {
            self.ram.moved[index].store(found.start, Ordering::Release);
            self.memory.fetch_add(BLOCK_SIZE, Ordering::Relaxed);
        }
        block.end_return(found.is_some());
        let had_reported = {
            let mut balloon = self.ram.balloon.lock();
            balloon.blocks -= u32::from(found.is_some());
            let is_reported = balloon.is_reported;
            balloon.is_reported |= found.is_none();
            is_reported
        };
        if found.is_some() {
            return Answer::Done;
        }
        if !had_reported {
            log_of!(self, "{}: its balloon can't give memory back, as none is free: stop another VM", self.name);
        }
        Answer::NoMemory
    }

    /// Number of the block of an address in RAM and its pages in the balloon; `None` if there are none.
    fn balloon_block(&self, gpa: u64) -> Option<(usize, &'static stile_paging::given::GivenPages)> {
        let index = self.ram.index(gpa).filter(|_| self.ram.contains(gpa))?;
        Some((index, self.ram.given.get(index)?))
    }
}

/// Address of a block without memory: in no direct map.
const NOWHERE: u64 = 1 << 62;
