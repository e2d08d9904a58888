//! Pages of a block of guest RAM that change while the VM is copied (pre-copy).
//!
//! A block is collected first as a whole: it becomes read-only, and all of its pages are pending, that is, to be copied. The
//! VM's first write to a page faults: the page becomes dirty, and then writable. The next collection turns dirty pages into
//! pending ones, and makes them read-only again. The order makes that no write is lost:
//!
//! 1. No vCPU runs: dirty pages become pending and read-only, and cached translations are invalidated.
//! 2. The VM runs. A page stops being pending, and then is copied. A write meanwhile makes it dirty: it is copied again.
//! 3. In the end no vCPU runs, and the pages that are dirty or pending are copied.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::PAGE_SIZE;
use crate::first_touch::BLOCK_SIZE;

const WORDS: usize = (BLOCK_SIZE / PAGE_SIZE / WORD_PAGES) as usize;
/// Pages of a word.
const WORD_PAGES: u64 = u64::BITS as u64;
/// Bytes of the pages of a word.
const WORD_SIZE: u64 = WORD_PAGES * PAGE_SIZE;

/// A set of pages of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// All pages.
    All,
    /// Pages that were dirty at the last collection, and were not copied since.
    Pending,
    /// Pending pages, and pages that became dirty since the last collection.
    Rest,
}

/// Dirty and pending pages of a collected block. All zeros is a block without any.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Changes {
    dirty: [AtomicU64; WORDS],
    pending: [AtomicU64; WORDS],
}

/// Word and bit of the page at an address.
const fn place(address: u64) -> (usize, u64) {
    let page = address % BLOCK_SIZE / PAGE_SIZE;
    ((page / WORD_PAGES) as usize, 1 << (page % WORD_PAGES))
}

impl Changes {
    /// No pages.
    #[must_use]
    pub const fn new() -> Changes {
        Changes { dirty: [const { AtomicU64::new(0) }; WORDS], pending: [const { AtomicU64::new(0) }; WORDS] }
    }

    /// The block is collected as a whole: all pages are pending, none is dirty. No vCPU of the VM runs.
    pub fn begin(&self) {
        self.dirty.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.pending.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }

    /// The page at an address is about to be written. It becomes writable only afterwards.
    pub fn set_dirty(&self, address: u64) {
        let (word, bit) = place(address);
        self.dirty[word].fetch_or(bit, Ordering::Release);
    }

    /// Turns dirty pages into pending ones, at most `most` of them, and calls `protect` with their ranges of offsets, none of
    /// which is a whole block. Returns the number of pages, which is below `most` only if no page is dirty any more. No vCPU
    /// of the VM runs.
    pub fn collect(&self, most: usize, mut protect: impl FnMut(Range<u64>)) -> usize {
        let mut count = 0;
        for ((dirty, pending), base) in self.dirty.iter().zip(&self.pending).zip((0..).step_by(WORD_SIZE as usize)) {
            while count < most {
                let pages = dirty.load(Ordering::Acquire);
                if pages == 0 {
                    break;
                }
                let first = pages.trailing_zeros();
                let run = (pages >> first).trailing_ones().min((most - count) as u32);
                let mask = (u64::MAX >> (u64::BITS - run)) << first;
                dirty.fetch_and(!mask, Ordering::Relaxed);
                pending.fetch_or(mask, Ordering::Relaxed);
                let start = base + u64::from(first) * PAGE_SIZE;
                protect(start..start + u64::from(run) * PAGE_SIZE);
                count += run as usize;
            }
        }
        count
    }

    /// Offset of the first page of a set that is not before `offset`.
    #[must_use]
    pub fn next(&self, offset: u64, of: Pages) -> Option<u64> {
        let mut page = offset / PAGE_SIZE;
        loop {
            let word = (page / WORD_PAGES) as usize;
            let pending = self.pending.get(word)?.load(Ordering::Relaxed);
            let pages = match of {
                Pages::All => u64::MAX,
                Pages::Pending => pending,
                Pages::Rest => pending | self.dirty[word].load(Ordering::Acquire),
            };
            let pages = pages >> (page % WORD_PAGES);
            if pages != 0 {
                return Some((page + u64::from(pages.trailing_zeros())) * PAGE_SIZE);
            }
            page = (page / WORD_PAGES + 1) * WORD_PAGES;
        }
    }

    /// The page at an address is not pending any more: the caller copies it next.
    pub fn take(&self, address: u64) {
        let (word, bit) = place(address);
        self.pending[word].fetch_and(!bit, Ordering::AcqRel);
    }
}
