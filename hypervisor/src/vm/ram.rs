//! A VM's RAM: where it is, and which of it has its contents yet.
//!
//! A block of RAM gets its contents, and is mapped, when it is first touched: by the guest, whose access faults in the second stage, or by
//! Stile on its behalf. So a VM starts in the same time whatever its size, and who touches memory pays for it. A reset unmaps the blocks that
//! files are loaded into; the next touch loads them again.

use stile_blob::{Load, MAX_LOADS, Source};
use stile_paging::PAGE_SIZE;
use stile_paging::first_touch::{BLOCK_SIZE, Block, Claim, STEP_SIZE, STEPS};
use stile_paging::frames::{MAX_PIECES, Piece};

use super::{BLOB, Vm};
use crate::console::log;
use crate::{arch, memory};

/// How many blocks one call of [`Vm::drain_files`] unmaps.
const DRAINED_AT_ONCE: usize = 64;

/// The RAM of a VM.
pub struct Ram {
    /// Where it is.
    pieces: heapless::Vec<Piece, MAX_PIECES>,
    /// Files that are loaded into it.
    loads: heapless::Vec<Load, MAX_LOADS>,
    /// The address of the first block.
    base: u64,
    /// All blocks from there to the end of RAM.
    blocks: &'static [Block],
}

impl Ram {
    /// RAM of which nothing was touched yet. The pieces are in the order of their addresses.
    pub fn new(pieces: heapless::Vec<Piece, MAX_PIECES>, loads: heapless::Vec<Load, MAX_LOADS>) -> Ram {
        let base = pieces.first().map_or(0, |first| first.gpa) & !(BLOCK_SIZE - 1);
        let end = pieces.last().map_or(base, |last| last.gpa + last.size);
        let count = (end - base).div_ceil(BLOCK_SIZE) as usize;
        let states = memory::allocate_pages((count.max(1) * size_of::<Block>()).next_multiple_of(PAGE_SIZE as usize) as u64);
        // SAFETY: the pages are nobody else's and zeroed, which makes empty blocks; they are never freed.
        let blocks = unsafe { core::slice::from_raw_parts(arch::physical(states).cast::<Block>(), count) };
        Ram { pieces, loads, base, blocks }
    }

    /// The block around an address, which is in RAM or in a hole of it.
    #[inline]
    fn block(&self, gpa: u64) -> Option<&'static Block> {
        let index = gpa.checked_sub(self.base)? / BLOCK_SIZE;
        self.blocks.get(usize::try_from(index).ok()?)
    }

    /// Whether an address is in RAM.
    fn contains(&self, gpa: u64) -> bool {
        self.pieces.iter().any(|piece| gpa.checked_sub(piece.gpa).is_some_and(|into| into < piece.size))
    }

    /// The parts of a range that are in RAM.
    fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = Piece> {
        self.pieces.iter().filter_map(move |piece| {
            let (start, end) = (start.max(piece.gpa), end.min(piece.gpa + piece.size));
            (start < end).then(|| Piece { gpa: start, pa: piece.pa + (start - piece.gpa), size: end - start })
        })
    }

    /// Whether files are loaded into a block.
    fn has_files(&self, start: u64) -> bool {
        self.loads.iter().any(|load| load.gpa < start + BLOCK_SIZE && load.gpa + load.mem_len > start)
    }

    /// Writes the contents of a range of one block, which the caller has claimed. `again`: only of the parts that files are loaded into.
    fn write(&self, start: u64, end: u64, again: bool) {
        for part in self.parts(start, end) {
            let (mut at, end) = (part.gpa, part.gpa + part.size);
            while at < end {
                let run = BLOB.get().contents(&self.loads, at, end);
                let to = arch::physical(part.pa + (at - part.gpa));
                let length = run.len as usize;
                match run.source {
                    // SAFETY: the run is of this VM's RAM, in the direct map, where no vCPU can reach it; the file is elsewhere, as long as
                    // the run.
                    Source::File(bytes) => unsafe { arch::copy(to, bytes.as_ptr(), length) },
                    Source::Nothing if again => {}
                    // SAFETY: as above.
                    Source::Zeros | Source::Nothing => unsafe { arch::zero(to, length) },
                }
                at += run.len;
            }
        }
    }
}

impl Vm {
    /// Whether an address is in RAM, and the block around it full and mapped.
    #[inline]
    pub fn is_full(&self, gpa: u64) -> bool {
        self.ram.block(gpa).is_some_and(Block::is_full)
    }

    /// The guest found nothing mapped at an address: does a part of what it takes to map the block around it, of bounded length. False if the
    /// address is not in RAM. Otherwise the guest tries again, which may bring it here again.
    pub fn touch(&self, gpa: u64) -> bool {
        let Some(block) = self.ram.block(gpa).filter(|_| self.ram.contains(gpa)) else { return false };
        let start = gpa & !(BLOCK_SIZE - 1);
        let Claim::Fill { step, again } = block.claim() else { return true };
        let bytes = if self.ram.has_files(start) { arch::COPIED_AT_ONCE } else { arch::ZEROED_AT_ONCE };
        let next = STEPS.min(step + (bytes / STEP_SIZE) as u8);
        self.ram.write(start + u64::from(step) * STEP_SIZE, start + u64::from(next) * STEP_SIZE, again);
        if next < STEPS {
            block.release(next);
            return true;
        }
        for part in self.ram.parts(start, start + BLOCK_SIZE) {
            if let Err(error) = self.arch.map_ram(&part) {
                // The tables were made when the VM was.
                log!("{}: RAM at {:#x} can't be mapped: {error:?}", self.name, part.gpa);
            }
        }
        block.complete();
        true
    }

    /// Fills and maps the block around an address that Stile is about to read or write for the guest, if it is in RAM.
    #[inline]
    pub fn fill(&self, gpa: u64) {
        if !self.is_full(gpa) {
            self.fill_now(gpa);
        }
    }

    /// Another CPU holds the block for no longer than [`Vm::touch`] takes.
    #[cold]
    fn fill_now(&self, gpa: u64) {
        while self.touch(gpa) && !self.is_full(gpa) {
            core::hint::spin_loop();
        }
    }

    /// Unmaps blocks that files are loaded into, so that they are loaded again. Returns whether that is all of them. No vCPU runs, and one is
    /// loaded on this CPU.
    pub fn drain_files(&self) -> bool {
        let mut drained = 0;
        'all: for load in &self.ram.loads {
            let first = load.gpa & !(BLOCK_SIZE - 1);
            for start in (first..load.gpa + load.mem_len).step_by(BLOCK_SIZE as usize) {
                if drained == DRAINED_AT_ONCE {
                    break 'all;
                }
                if self.ram.block(start).is_some_and(Block::drain) {
                    self.arch.unmap_ram(start, BLOCK_SIZE);
                    drained += 1;
                }
            }
        }
        if drained != 0 {
            self.arch.complete_unmap();
        }
        drained < DRAINED_AT_ONCE
    }
}
