//! Pages of a block of guest RAM that the guest has put into its balloon.
//!
//! A block whose pages are all in the balloon can be taken from the VM ([`Block::begin_release`](crate::first_touch::Block::begin_release)).
//! Pages count once, whatever order they come in and how often they are named.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::PAGE_SIZE;
use crate::first_touch::BLOCK_SIZE;

/// Pages of a word.
const WORD_PAGES: u64 = u64::BITS as u64;
const WORDS: usize = (BLOCK_SIZE / PAGE_SIZE / WORD_PAGES) as usize;

/// Set of pages of a block that are in the balloon. All zeros is the empty set. The caller serializes calls.
///
/// Pages are those of one life of the guest's driver, which has a number: those of an earlier one count no more.
#[derive(Debug, Default)]
#[repr(C)]
pub struct GivenPages {
    words: [AtomicU64; WORDS],
    life: AtomicU32,
    reserved: u32,
}

impl GivenPages {
    /// The empty set.
    #[must_use]
    pub const fn new() -> GivenPages {
        GivenPages { words: [const { AtomicU64::new(0) }; WORDS], life: AtomicU32::new(0), reserved: 0 }
    }

    fn place(&self, address: u64) -> (&AtomicU64, u64) {
        let page = address % BLOCK_SIZE / PAGE_SIZE;
        (&self.words[(page / WORD_PAGES) as usize], 1 << (page % WORD_PAGES))
    }

    /// Empties the set.
    pub fn clear(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Adds the page at an address, in this life of the driver. Returns whether all pages of the block are in the set.
    pub fn give(&self, address: u64, life: u32) -> bool {
        if self.life.swap(life, Ordering::Relaxed) != life {
            self.clear();
        }
        let (word, bit) = self.place(address);
        word.fetch_or(bit, Ordering::Relaxed);
        self.words.iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX)
    }

    /// Removes the page at an address.
    pub fn take(&self, address: u64) {
        let (word, bit) = self.place(address);
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = BLOCK_SIZE / PAGE_SIZE;

    #[test]
    fn a_block_is_complete_with_its_last_page() {
        let given = GivenPages::new();
        for page in (0..PAGES).rev() {
            assert!(page == 0 || !given.give(7 * BLOCK_SIZE + page * PAGE_SIZE, 1), "page {page}");
            assert!(page == 0 || !given.give(page * PAGE_SIZE + 5, 1), "a page counts once");
        }
        assert!(given.give(0, 1) && given.give(0, 1));
        given.take(PAGE_SIZE);
        assert!(!given.give(0, 1));
        assert!(given.give(PAGE_SIZE, 1));
    }

    #[test]
    fn pages_of_an_earlier_life_do_not_count() {
        let given = GivenPages::new();
        (0..PAGES - 1).for_each(|page| assert!(!given.give(page * PAGE_SIZE, 1)));
        assert!(!given.give((PAGES - 1) * PAGE_SIZE, 2), "the others are used again");
        (0..PAGES - 2).for_each(|page| assert!(!given.give(page * PAGE_SIZE, 2)));
        assert!(given.give((PAGES - 2) * PAGE_SIZE, 2));
    }

    proptest! {
        /// Any calls agree with a set.
        #[test]
        fn calls_agree_with_a_set(calls in prop::collection::vec((0..4u32, 0..PAGES, 1..PAGES), 1..40)) {
            let given = GivenPages::new();
            let (mut life, mut set) = (0, BTreeSet::new());
            for (kind, first, count) in calls {
                let pages: Vec<u64> = (first..first + count).map(|page| page % PAGES).collect();
                match kind {
                    0 => pages.iter().for_each(|page| {
                        given.take(page * PAGE_SIZE);
                        set.remove(page);
                    }),
                    1 if first % 4 == 0 => {
                        life += 1;
                        set.clear();
                    }
                    _ => for page in pages {
                        set.insert(page);
                        prop_assert_eq!(given.give(page * PAGE_SIZE, life), set.len() as u64 == PAGES);
                    }
                }
            }
        }
    }
}
