//! A ring with one CPU that writes records and one that reads them. A full ring drops further records: the writer never waits.
//!
//! Each slot says for itself whether it is free, by a first word of 0, so that both sides need only their own position. The writer stores
//! the second word before the first one; the reader reads both before it stores 0.

use core::sync::atomic::{AtomicU64, Ordering};

/// Slots of a ring: a power of two. With [`Slot`] it is 64 KiB.
pub const SLOTS: usize = 4096;

/// Room for a record. All bytes zero is a free slot.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Slot {
    first: AtomicU64,
    second: AtomicU64,
}

impl Slot {
    /// A free slot.
    pub const fn new() -> Slot {
        Slot { first: AtomicU64::new(0), second: AtomicU64::new(0) }
    }

    /// A ring without a reader.
    pub(crate) const fn full() -> Slot {
        Slot { first: AtomicU64::new(1), second: AtomicU64::new(0) }
    }

    /// Writes a record, of which the first word is not 0. Returns false, having written nothing, if the slot is not
    /// free. For the writer only.
    #[inline]
    pub fn put(&self, [first, second]: [u64; 2]) -> bool {
        // The reader has read what is overwritten.
        let free = self.first.load(Ordering::Acquire) == 0;
        if free {
            self.second.store(second, Ordering::Relaxed);
            self.first.store(first, Ordering::Release);
        }
        free
    }

    /// Takes the record, if there is one. For the reader only.
    pub fn take(&self) -> Option<[u64; 2]> {
        let first = self.first.load(Ordering::Acquire);
        if first == 0 {
            return None;
        }
        let second = self.second.load(Ordering::Relaxed);
        self.first.store(0, Ordering::Release);
        Some([first, second])
    }
}

/// The position after `position`, after a record was put or taken there.
pub const fn next(position: usize) -> usize {
    (position + 1) % SLOTS
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// The slots, and the positions of both sides.
    fn ring() -> (Vec<Slot>, usize, usize) {
        ((0..SLOTS).map(|_| Slot::default()).collect(), 0, 0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_ring_is_a_queue_that_drops_what_has_no_room(steps in prop::collection::vec((any::<bool>(), 0..3 * SLOTS / 2), 1..12)) {
            let (slots, mut write, mut read) = ring();
            let (mut model, mut number) = (VecDeque::new(), 0_u64);
            for (writes, times) in steps {
                for _ in 0..times {
                    if writes {
                        number += 1;
                        let record = [number, !number];
                        let put = slots[write].put(record);
                        prop_assert_eq!(put, model.len() < SLOTS);
                        if put {
                            model.push_back(record);
                            write = next(write);
                        }
                    } else {
                        let taken = slots[read].take();
                        prop_assert_eq!(taken, model.pop_front());
                        if taken.is_some() {
                            read = next(read);
                        }
                    }
                }
            }
        }
    }
}
