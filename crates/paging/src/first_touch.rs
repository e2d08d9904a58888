//! Lazy initialization of guest RAM: a block gets its contents at the guest's first access.
//!
//! RAM is divided into blocks of [`BLOCK_SIZE`]. A block is mapped in the second stage once it is filled,
//! with zeros and the file contents placed in it. Filling takes [`STEPS`] steps. A CPU claims a block, does
//! some steps and releases it: an exit does a bounded part of the work.
//!
//! The hypervisor's own accesses on a guest's behalf fill only the pages that they need, ahead of the steps,
//! which skip these pages ([`EarlyPages`]). The block stays unmapped. Such an access waits for a claim, and a CPU that does
//! steps releases its claim after a piece of [`PIECE_SIZE`] if one waits.
//!
//! While a VM is copied, its blocks are tracked: a collection ([`Block::collect`]) makes a filled block read-only, and
//! [`Changes`](crate::changes::Changes) records the pages that are written since. Once the block is writable again
//! ([`Block::untrack`]), all of its pages count as changed.
//!
//! A block that the guest gave back by its balloon ([`Block::begin_release`]) has no memory until it gets some again.

use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use crate::PAGE_SIZE;

/// Bytes of a block: what one second-stage block descriptor of level 2 maps.
pub const BLOCK_SIZE: u64 = 2 << 20;
/// Steps to fill a block.
pub const STEPS: u8 = 8;
/// Bytes that one step fills.
pub const STEP_SIZE: u64 = BLOCK_SIZE / STEPS as u64;
/// Bytes after which a CPU that fills looks for one that waits.
pub const PIECE_SIZE: u64 = 64 << 10;

/// A CPU waits for the claim, which another one holds.
const WAITED: u16 = 1 << 8;
/// A CPU holds the block's claim.
const CLAIMED: u16 = 1 << 7;
/// The block was filled before a reset: only file contents are written again, other memory is preserved.
const REFILL: u16 = 1 << 6;
/// The hypervisor has accessed pages of the block, which is not filled.
const EARLY: u16 = 1 << 5;
/// The block will be filled from its first step on although it has contents: its early pages were reset.
const STALE: u16 = 1 << 4;
/// Number of completed steps, or [`TRACKED`].
const DONE: u16 = STALE - 1;
const _: () = assert!(GIVEN <= DONE);
/// The block is filled and mapped, and read-only but for pages that were written since it was collected.
const TRACKED: u16 = FULL + 1;
/// The block has no memory: its guest gave it back, by its balloon.
const GIVEN: u16 = FULL + 2;
/// The block is filled, mapped and writable.
const FULL: u16 = STEPS as u16;

/// Pages of one step: the bits of a word of [`EarlyPages`].
const STEP_PAGES: u64 = STEP_SIZE / PAGE_SIZE;
const _: () = assert!(STEP_PAGES == u64::BITS as u64);

/// Bitmap of the pages of a block that were filled ahead of its steps. All zeros is the empty set. Only the CPU that
/// holds the block's claim changes it. Others find pages that are in it filled.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct EarlyPages([AtomicU64; STEPS as usize]);

impl EarlyPages {
    /// The empty set.
    #[must_use]
    pub const fn new() -> EarlyPages {
        EarlyPages([const { AtomicU64::new(0) }; STEPS as usize])
    }

    fn place(&self, offset: u64) -> (&AtomicU64, u64) {
        let page = offset % BLOCK_SIZE / PAGE_SIZE;
        (&self.0[(page / STEP_PAGES) as usize], 1 << (page % STEP_PAGES))
    }

    fn has(&self, offset: u64) -> bool {
        let (word, bit) = self.place(offset);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Adds the page at an offset, which was filled before.
    fn add(&self, offset: u64) {
        let (word, bit) = self.place(offset);
        word.fetch_or(bit, Ordering::Release);
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Returns the maximal ranges of pages between the offsets `start` and `end`, multiples of the page size, that are not in the set.
    pub fn gaps(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut at = start;
        core::iter::from_fn(move || {
            while at < end && self.has(at) {
                at += PAGE_SIZE;
            }
            let first = at;
            while at < end && !self.has(at) {
                at += PAGE_SIZE;
            }
            (first < at).then_some((first, at))
        })
    }
}

/// Fill progress of a block. All zeros is an empty block.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Block(AtomicU16);

/// The result of [`Block::claim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The block is filled and mapped, perhaps read-only.
    Full,
    /// Another CPU holds the claim.
    Busy,
    /// The block has no memory, which its guest gave back.
    Given,
    /// The caller owns the claim: it fills from `step` on, then calls [`Block::release`] or
    /// [`Block::complete`].
    Fill {
        /// The first step to do.
        step: u8,
        /// Write only the file contents: the block was filled before a reset.
        again: bool,
        /// Write only the [`EarlyPages::gaps`]: the block may have early pages.
        early: bool,
    },
}

impl Block {
    /// An empty block.
    #[must_use]
    pub const fn new() -> Block {
        Block(AtomicU16::new(0))
    }

    /// Whether the block is filled, mapped and writable.
    #[inline(always)]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.0.load(Ordering::Acquire) == FULL
    }

    /// Whether nothing was ever written to the block.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Tries to claim the block for filling.
    #[must_use]
    pub fn claim(&self) -> Claim {
        let old = self.0.load(Ordering::Acquire);
        if old == FULL || old == TRACKED {
            return Claim::Full;
        }
        if old == GIVEN {
            return Claim::Given;
        }
        // Acquire: steps done by another CPU are visible before this CPU maps the block.
        let won = old & CLAIMED == 0 && self.0.compare_exchange(old, old | CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if won { Claim::Fill { step: (old & DONE) as u8, again: old & REFILL != 0, early: old & EARLY != 0 } } else { Claim::Busy }
    }

    /// Claims the block to take its memory from the VM, whether it is filled or not, unless it has none or is tracked. The caller unmaps the
    /// block and then calls [`Block::end_release`]. Returns false if another CPU holds the claim, or there is nothing to take.
    #[must_use]
    pub fn begin_release(&self) -> bool {
        let old = self.0.load(Ordering::Acquire);
        let can_be = old & CLAIMED == 0 && old != TRACKED && old != GIVEN;
        can_be && self.0.compare_exchange(old, GIVEN | CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Releases the claim of [`Block::begin_release`]. `is_free`: the memory is not the VM's any more; otherwise the block is empty, and gets
    /// the contents of a new one.
    pub fn end_release(&self, pages: &EarlyPages, is_free: bool) {
        pages.clear();
        self.0.store(if is_free { GIVEN } else { 0 }, Ordering::Release);
    }

    /// Claims a block without memory. Returns false if it has some, or another CPU holds the claim. The caller then calls
    /// [`Block::end_return`].
    #[must_use]
    pub fn begin_return(&self) -> bool {
        self.0.compare_exchange(GIVEN, GIVEN | CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Releases the claim of [`Block::begin_return`]. `has_memory`: the block is empty, and is filled when it is touched.
    pub fn end_return(&self, has_memory: bool) {
        self.0.store(if has_memory { 0 } else { GIVEN }, Ordering::Release);
    }

    /// Whether the block has no memory, as its guest gave it back.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.0.load(Ordering::Acquire) == GIVEN
    }

    /// Collects a writable block, which is tracked from then on. Returns whether it was writable; the caller must then make
    /// it read-only. No vCPU of the VM runs.
    pub fn collect(&self) -> bool {
        self.0.compare_exchange(FULL, TRACKED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether the block is tracked.
    #[must_use]
    pub fn is_tracked(&self) -> bool {
        self.0.load(Ordering::Acquire) == TRACKED
    }

    /// Ends the tracking of a block. The caller has made it writable.
    pub fn untrack(&self) {
        _ = self.0.compare_exchange(TRACKED, FULL, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether all of the block is filled.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        self.0.load(Ordering::Acquire) & DONE >= FULL
    }

    /// Releases the claim, with the steps before `step` done.
    pub fn release(&self, step: u8) {
        let kept = self.0.load(Ordering::Relaxed) & (REFILL | EARLY | STALE);
        self.0.store(kept | u16::from(step.min(STEPS - 1)), Ordering::Release);
    }

    /// Registers that a CPU waits for the claim, if another one holds it. Returns whether one does.
    pub fn wait(&self) -> bool {
        let old = self.0.load(Ordering::Relaxed);
        let waits = |old| old & CLAIMED != 0 && self.0.compare_exchange(old, old | WAITED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        old & WAITED != 0 || waits(old)
    }

    /// Whether a CPU waits for the claim, which the caller holds.
    #[must_use]
    pub fn is_waited(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WAITED != 0
    }

    /// Releases the claim to a CPU that waits, with all pages before the offset `filled` done, within a step.
    pub fn release_between(&self, pages: &EarlyPages, filled: u64) {
        let step = filled / STEP_SIZE;
        (step * STEP_SIZE..filled).step_by(PAGE_SIZE as usize).for_each(|offset| pages.add(offset));
        let kept = self.0.load(Ordering::Relaxed) & (REFILL | STALE);
        self.0.store(kept | EARLY | (step as u16).min(FULL - 1), Ordering::Release);
    }

    /// Whether the page at `offset` was filled ahead of its step or in one, and a reset fills it again.
    #[must_use]
    pub fn has_page(&self, pages: &EarlyPages, offset: u64) -> bool {
        let state = self.0.load(Ordering::Acquire);
        let step = offset % BLOCK_SIZE / STEP_SIZE;
        state & EARLY != 0 && (step < u64::from(state & DONE) || pages.has(offset))
    }

    /// Releases the claim of a block that is now filled and mapped.
    pub fn complete(&self, pages: &EarlyPages) {
        if self.0.load(Ordering::Relaxed) & EARLY != 0 {
            pages.clear();
        }
        self.0.store(FULL, Ordering::Release);
    }

    /// Calls `fill` to fill the page at `offset` in the claimed block ahead of its steps, unless the page is filled already,
    /// and releases the claim. `step` is the first step to do, from [`Claim::Fill`].
    pub fn fill_early(&self, pages: &EarlyPages, step: u8, offset: u64, fill: impl FnOnce()) {
        let state = self.0.load(Ordering::Relaxed) & !(CLAIMED | WAITED);
        if offset % BLOCK_SIZE / STEP_SIZE >= step.into() && !pages.has(offset) {
            fill();
            pages.add(offset);
        }
        // Also for a page that a step has filled: the caller may change it, and then a reset must fill it again.
        self.0.store(state | EARLY, Ordering::Release);
    }

    /// Claims a writable or tracked block for refilling from files. Returns whether it was one; the caller must then unmap it and
    /// [`release`](Block::release) it with step 0: other VMs may touch it until it is unmapped there, too. A block that
    /// is not filled and has early pages starts over with its first step. All vCPUs of the VM are off, and no other VM
    /// touches a VM's blocks that can have early pages.
    pub fn drain(&self, pages: &EarlyPages) -> bool {
        let state = self.0.load(Ordering::Acquire);
        if state & EARLY != 0 {
            pages.clear();
            self.0.store(state & REFILL | STALE, Ordering::Release);
        }
        let drain = |from| self.0.compare_exchange(from, REFILL | CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        drain(FULL) || drain(TRACKED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn fill(step: u8, again: bool, early: bool) -> Claim {
        Claim::Fill { step, again, early }
    }

    /// Claims a block and fills the page at `offset` early. Returns whether it was filled now.
    fn fill_early(block: &Block, pages: &EarlyPages, offset: u64) -> bool {
        let Claim::Fill { step, .. } = block.claim() else { panic!("the block can't be claimed") };
        let mut filled = false;
        block.fill_early(pages, step, offset, || filled = true);
        filled
    }

    #[test]
    fn a_block_is_filled_in_steps() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(!block.is_writable() && block.is_untouched());
        assert_eq!(block.claim(), fill(0, false, false));
        assert!(!block.is_untouched());
        assert_eq!(block.claim(), Claim::Busy);
        block.release(3);
        assert_eq!(block.claim(), fill(3, false, false));
        assert!(!block.drain(&pages), "drain must not discard the progress of a partly filled block");
        block.complete(&pages);
        assert!(block.is_writable());
        assert_eq!(block.claim(), Claim::Full);
    }

    #[test]
    fn a_drained_block_is_refilled_from_files_only() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(matches!(block.claim(), Claim::Fill { .. }));
        block.complete(&pages);
        assert!(block.drain(&pages));
        assert!(!block.is_writable());
        assert!(!block.drain(&pages));
        assert_eq!(block.claim(), Claim::Busy, "the block is still mapped");
        block.release(0);
        assert_eq!(block.claim(), fill(0, true, false));
        block.release(5);
        assert_eq!(block.claim(), fill(5, true, false));
        block.complete(&pages);
        assert_eq!(block.claim(), Claim::Full);
    }

    #[test]
    fn a_block_is_given_back_and_returned() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(!block.begin_return(), "it has memory");
        assert!(block.begin_release(), "untouched memory can be given back");
        assert_eq!((block.claim(), block.begin_release(), block.begin_return()), (Claim::Busy, false, false));
        block.end_release(&pages, true);
        assert!(block.is_given() && !block.is_writable() && !block.is_untouched());
        assert_eq!((block.claim(), block.begin_release()), (Claim::Given, false), "it is given once");
        assert!(!block.drain(&pages) && !block.collect());
        assert!(block.begin_return() && !block.begin_return());
        block.end_return(false);
        assert_eq!(block.claim(), Claim::Given, "there was no memory for it");
        assert!(block.begin_return());
        block.end_return(true);
        assert_eq!(block.claim(), fill(0, false, false));
        assert!(!block.begin_release(), "another CPU fills it");
        block.complete(&pages);
        assert!(block.begin_release());
        block.end_release(&pages, false);
        assert_eq!(block.claim(), fill(0, false, false), "its memory could not be freed, and is clear");
        block.complete(&pages);
        assert!(block.collect() && !block.begin_release(), "it is copied");
    }

    #[test]
    fn a_block_with_early_pages_loses_them_when_it_is_given_back() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(fill_early(&block, &pages, 0));
        assert!(block.begin_release());
        block.end_release(&pages, true);
        assert!(block.begin_return());
        block.end_return(true);
        assert!(!block.has_page(&pages, 0) && fill_early(&block, &pages, 0));
    }

    #[test]
    fn a_collected_block_is_mapped_but_not_writable() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(!block.collect(), "it is not writable");
        assert!(matches!(block.claim(), Claim::Fill { .. }));
        assert!(!block.collect(), "it is not writable");
        block.complete(&pages);
        assert!(block.collect() && !block.collect());
        assert!(block.is_tracked() && block.is_filled() && !block.is_writable());
        assert_eq!(block.claim(), Claim::Full, "it is mapped");
        block.untrack();
        assert!(block.is_writable() && !block.is_tracked());
        block.untrack();
        assert!(block.is_writable() && block.collect());
    }

    #[test]
    fn a_collected_block_is_refilled_from_files_after_a_reset() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(matches!(block.claim(), Claim::Fill { .. }));
        block.complete(&pages);
        assert!(block.collect());
        assert!(block.drain(&pages), "it is mapped");
        block.untrack();
        assert!(!block.is_writable(), "it is not tracked any more");
        block.release(0);
        assert_eq!(block.claim(), fill(0, true, false));
    }

    #[test]
    fn early_pages_are_filled_once_and_skipped_by_steps() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        let page = 3 * STEP_SIZE + 5 * PAGE_SIZE;
        assert!(fill_early(&block, &pages, page + 8));
        assert!(!fill_early(&block, &pages, page + 4095), "the page is filled already");
        assert!(fill_early(&block, &pages, page + PAGE_SIZE));
        assert_eq!(block.claim(), fill(0, false, true));
        block.release(4);
        assert!(!fill_early(&block, &pages, 0), "a step has filled the page");
        let gaps = |start, end| pages.gaps(start, end).collect::<std::vec::Vec<_>>();
        assert_eq!(gaps(3 * STEP_SIZE, 4 * STEP_SIZE), [(3 * STEP_SIZE, page), (page + 2 * PAGE_SIZE, 4 * STEP_SIZE)]);
        assert_eq!(gaps(4 * STEP_SIZE, BLOCK_SIZE), [(4 * STEP_SIZE, BLOCK_SIZE)]);
        assert_eq!(gaps(page, page + 2 * PAGE_SIZE), []);
        assert_eq!(block.claim(), fill(4, false, true));
        block.complete(&pages);
        assert_eq!(gaps(0, BLOCK_SIZE), [(0, BLOCK_SIZE)], "a full block has no early pages");
    }

    #[test]
    fn a_drained_block_forgets_its_early_pages() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(fill_early(&block, &pages, 0));
        assert!(!block.drain(&pages), "the block is not mapped");
        assert!(!block.is_untouched(), "its page has contents");
        assert_eq!(block.claim(), fill(0, false, false));
        block.complete(&pages);
        assert!(block.drain(&pages));
        block.release(0);
        assert!(fill_early(&block, &pages, 4096));
        assert!(!block.drain(&pages));
        assert!(fill_early(&block, &pages, 4096), "files are loaded again");
        assert_eq!(block.claim(), fill(0, true, true));
    }

    #[test]
    fn a_page_that_a_step_filled_is_filled_again_after_a_reset() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(matches!(block.claim(), Claim::Fill { .. }));
        block.release(3);
        // The hypervisor stores to it for the guest.
        assert!(!fill_early(&block, &pages, 0));
        assert!(!block.drain(&pages));
        assert_eq!(block.claim(), fill(0, false, false));
    }

    #[test]
    fn a_cpu_that_waits_gets_the_claim_between_pieces() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(!block.wait(), "nobody holds the claim");
        assert_eq!(block.claim(), fill(0, false, false));
        assert!(!block.is_waited());
        assert_eq!(block.claim(), Claim::Busy);
        assert!(block.wait() && block.wait() && block.is_waited());
        let filled = STEP_SIZE + PIECE_SIZE;
        block.release_between(&pages, filled);
        assert!(!block.is_waited() && !block.wait());
        assert!(block.has_page(&pages, 0) && block.has_page(&pages, filled - 1) && !block.has_page(&pages, filled));
        assert!(!fill_early(&block, &pages, filled - PAGE_SIZE), "the page is filled already");
        assert!(fill_early(&block, &pages, filled));
        assert!(block.has_page(&pages, filled));
        assert_eq!(block.claim(), fill(1, false, true));
        let gaps = pages.gaps(STEP_SIZE, 2 * STEP_SIZE).collect::<std::vec::Vec<_>>();
        assert_eq!(gaps, [(filled + PAGE_SIZE, 2 * STEP_SIZE)]);
        assert!(block.wait());
        block.complete(&pages);
        assert!(block.is_writable() && !block.wait() && !block.has_page(&pages, 0));
    }

    #[test]
    fn a_page_of_a_step_is_filled_again_only_once_it_is_noted() {
        let (block, pages) = (Block::new(), EarlyPages::new());
        assert!(matches!(block.claim(), Claim::Fill { .. }));
        block.release(1);
        assert!(!block.has_page(&pages, 0), "the hypervisor's access to it must be noted");
        assert!(!fill_early(&block, &pages, 0));
        assert!(block.has_page(&pages, 0) && !block.has_page(&pages, STEP_SIZE));
        assert!(!block.drain(&pages) && !block.has_page(&pages, 0));
    }

    /// CPUs that fill the same block concurrently, by steps and by pages, fill each page exactly once.
    #[test]
    fn concurrent_cpus_fill_each_page_once() {
        const PAGES: usize = (BLOCK_SIZE / PAGE_SIZE) as usize;
        let (block, pages) = (Block::new(), EarlyPages::new());
        let done: std::vec::Vec<_> = (0..PAGES).map(|_| AtomicU16::new(0)).collect();
        let fill = |start: u64, end: u64| {
            (start / PAGE_SIZE..end / PAGE_SIZE).for_each(|page| {
                done[page as usize].fetch_add(1, Ordering::Relaxed);
            });
        };
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (block, pages, fill, done) = (&block, &pages, &fill, &done);
                scope.spawn(move || {
                    for number in 0.. {
                        match block.claim() {
                            Claim::Full => break,
                            Claim::Given => unreachable!("nobody gives it back"),
                            Claim::Busy => {
                                _ = block.wait();
                                std::thread::yield_now();
                            }
                            Claim::Fill { step, .. } if thread < 2 && number % 64 != 0 => {
                                let page = (number * 37 + thread * 11) % PAGES as u64 * PAGE_SIZE;
                                block.fill_early(pages, step, page, || fill(page, page + PAGE_SIZE));
                                assert_eq!(done[(page / PAGE_SIZE) as usize].load(Ordering::Relaxed), 1);
                            }
                            Claim::Fill { step, .. } => {
                                let (mut at, end) = (u64::from(step) * STEP_SIZE, (u64::from(step) + 1) * STEP_SIZE);
                                while at < end && (at % STEP_SIZE == 0 || !block.is_waited()) {
                                    pages.gaps(at, at + PIECE_SIZE).for_each(|(start, end)| fill(start, end));
                                    at += PIECE_SIZE;
                                }
                                match step + 1 {
                                    _ if at < end => block.release_between(pages, at),
                                    STEPS => block.complete(pages),
                                    next => block.release(next),
                                }
                            }
                        }
                    }
                });
            }
        });
        assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}
