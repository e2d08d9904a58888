//! The event log, as Stile reads it.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{ENTRIES, Event};

/// The event log. Entries are read in order as long as they are not zero, and zeroed: QEMU (10.0) does not update the tail's register, and
/// hardware may update it before the entry.
#[derive(Debug)]
pub struct EventLog<'m> {
    entries: &'m [[AtomicU64; 2]; ENTRIES],
    next: usize,
}

impl<'m> EventLog<'m> {
    /// An empty log in zeroed memory that the IOMMU writes.
    pub const fn new(entries: &'m [[AtomicU64; 2]; ENTRIES]) -> Self {
        Self { entries, next: 0 }
    }

    /// Takes the next event.
    pub fn take(&mut self) -> Option<Event> {
        let [first, second] = &self.entries[self.next];
        // The word with the number may be written first.
        let words = [first.load(Ordering::Acquire), second.load(Ordering::Relaxed)];
        if Event::code(words) == 0 {
            return None;
        }
        second.store(0, Ordering::Relaxed);
        first.store(0, Ordering::Release);
        self.next = (self.next + 1) % ENTRIES;
        Some(Event::decode(words))
    }

    /// Value of Event Log Head: offset in bytes of the entry after the last one that was taken.
    pub const fn head(&self) -> u64 {
        self.next as u64 * 16
    }

    /// Drops all entries and begins at the first one. The IOMMU does not write meanwhile.
    pub fn reset(&mut self) {
        self.next = 0;
        self.entries.iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}
