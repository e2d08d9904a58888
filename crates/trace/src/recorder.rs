//! The writing end of a CPU's ring.

use core::cell::Cell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Kind, NO_VCPU, Record, SLOTS, Slot};

/// A CPU's ring. Its alignment lets the exit path go to the next slot with two instructions.
#[derive(Debug)]
#[repr(C, align(65536))]
pub struct Ring(pub [Slot; SLOTS]);

/// Base-2 logarithm of the size of a [`Ring`] in bytes.
pub const RING_SHIFT: u32 = 16;

const _: () = assert!(size_of::<Ring>() == 1 << RING_SHIFT && align_of::<Ring>() == 1 << RING_SHIFT);

/// Counts of a CPU while it records.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counts {
    /// Records of exits that found no room. Incremented by the exit path of the CPU only.
    pub exits: AtomicU64,
    /// Other records that found no room.
    pub others: AtomicU64,
    /// Exits that the vectors counted.
    pub taken: AtomicU64,
}

impl Counts {
    /// Nothing was dropped yet.
    pub const fn new() -> Counts {
        Counts { exits: AtomicU64::new(0), others: AtomicU64::new(0), taken: AtomicU64::new(0) }
    }

    /// Nothing is counted yet.
    pub fn reset(&self) {
        [&self.exits, &self.others, &self.taken].into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Counts a dropped record. The caller is the only writer.
    pub fn count(&self, record: Option<Record>) {
        let is_exit = record.is_some_and(|record| matches!(record.kind, Kind::Exit { .. } | Kind::Leave { .. }));
        let count = if is_exit { &self.exits } else { &self.others };
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// The next slot of a CPU that has ended to record, and whose exit path may still look.
static FULL: Slot = Slot::full();
static NOWHERE: Counts = Counts::new();

/// A CPU's state of its ring: part of its block, for the exit path. All bytes zero: it has never recorded.
#[derive(Debug)]
#[repr(C)]
pub struct Recorder {
    /// Pending interrupts at the time of the exit, in the architecture's format.
    pub before: Cell<u64>,
    /// The next slot.
    slot: Cell<Option<&'static Slot>>,
    counts: Cell<Option<&'static Counts>>,
    ring: Cell<Option<&'static Ring>>,
    /// The vCPU that was left last.
    pub left: Cell<u16>,
    /// Source of the pending interrupts' state, as the architecture numbers it.
    pub source: Cell<u64>,
}

/// Offset of [`Recorder::before`], for the exit path's assembly.
pub const BEFORE: usize = offset_of!(Recorder, before);
/// Offset of [`Recorder::source`].
pub const SOURCE: usize = offset_of!(Recorder, source);
/// Offset of the address of the next slot.
pub const SLOT: usize = offset_of!(Recorder, slot);
/// Offset of the address of the number of exits that were dropped.
pub const DROPPED: usize = offset_of!(Recorder, counts);

const _: () = assert!(offset_of!(Counts, exits) == 0);

impl Recorder {
    /// Records nothing.
    pub const fn new() -> Recorder {
        let (slot, counts, ring) = (Cell::new(None), Cell::new(None), Cell::new(None));
        Recorder { before: Cell::new(0), slot, counts, ring, left: Cell::new(NO_VCPU), source: Cell::new(0) }
    }

    /// Whether the CPU records.
    pub fn is_on(&self) -> bool {
        self.ring.get().is_some()
    }

    /// Records from now on, to a ring that is empty.
    pub fn begin(&self, ring: &'static Ring, counts: &'static Counts) {
        self.ring.set(Some(ring));
        self.counts.set(Some(counts));
        self.slot.set(ring.0.first());
    }

    /// Records no more.
    pub fn end(&self) {
        self.slot.set(Some(&FULL));
        self.counts.set(Some(&NOWHERE));
        self.ring.set(None);
    }

    /// Counts exits that the vectors counted.
    pub fn take(&self, exits: u64) {
        if let Some(counts) = self.counts.get() {
            counts.taken.store(counts.taken.load(Ordering::Relaxed) + exits, Ordering::Relaxed);
        }
    }

    /// Writes a record, or counts it as dropped.
    pub fn put(&self, record: Record) {
        let (Some(slot), Some(ring), Some(counts)) = (self.slot.get(), self.ring.get(), self.counts.get()) else { return };
        if slot.put(record.encode()) {
            let base = (&raw const ring.0).addr();
            let number = ((&raw const *slot).addr() - base) / size_of::<Slot>();
            self.slot.set(ring.0.get(crate::next(number)));
            return;
        }
        counts.count(Some(record));
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use super::*;

    #[test]
    fn a_recorder_fills_its_ring_and_counts_what_has_no_room() {
        let ring: &'static Ring = Box::leak(Box::new(Ring([const { Slot::new() }; SLOTS])));
        let dropped: &'static Counts = Box::leak(Box::default());
        let recorder = Recorder::new();
        let exit = |row| Record { ticks: 7, vcpu: 3, kind: Kind::Exit { row, took: 1 } };
        recorder.put(exit(1));
        recorder.begin(ring, dropped);
        assert!(recorder.is_on());
        for _ in 0..SLOTS {
            recorder.put(exit(2));
        }
        recorder.put(exit(3));
        recorder.put(Record { kind: Kind::Enter, ..exit(3) });
        recorder.put(exit(3));
        assert_eq!((dropped.exits.load(Ordering::Relaxed), dropped.others.load(Ordering::Relaxed)), (2, 1));
        assert_eq!(ring.0[0].take().and_then(Record::decode), Some(exit(2)));
        recorder.put(exit(4));
        assert_eq!(ring.0[0].take().and_then(Record::decode), Some(exit(4)), "the position wrapped");
        recorder.end();
        recorder.put(exit(5));
        assert!(!recorder.is_on() && ring.0[1].take().and_then(Record::decode) == Some(exit(2)));
    }
}
