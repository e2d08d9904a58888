//! The frames of one VM's shadow tables: reserved at the VM's creation, so that VMs don't compete for them,
//! and freed incrementally, so that no exit is long because of a large shadow.
//!
//! A table removed from a shadow is put on a list with everything below it: *garbage*. An allocation takes a
//! free frame, or scans the garbage for one: at most [`ENTRIES`] entries per table above the last level.

use core::convert::Infallible;
use core::ops::Range;

use stile_paging::PAGE_SIZE;
use stile_paging::table::{ENTRIES, Entry, Layout, Level, Maintenance, TableMemory, TableRead, Vmsa};

/// Access to reserved frames.
pub trait Frames: TableRead<Error = Infallible> {
    /// Writes entry `index` of the table at `table`, as [`TableMemory::write`] does.
    fn write(&mut self, table: u64, index: usize, descriptor: u64);

    /// Zeroes a frame.
    fn zero(&mut self, frame: u64);
}

/// Frames linked through their first entries. A link is a multiple of 4 KiB, and so an invalid descriptor:
/// stale walks may still reach it.
#[derive(Debug, Default)]
struct List {
    head: u64,
    length: usize,
}

impl List {
    fn push(&mut self, frames: &mut impl Frames, frame: u64) {
        frames.write(frame, 0, self.head);
        self.head = frame;
        self.length += 1;
    }

    fn pop(&mut self, frames: &impl Frames) -> Option<u64> {
        self.length = self.length.checked_sub(1)?;
        let frame = self.head;
        self.head = entry(frames, frame, 0);
        Some(frame)
    }
}

fn entry(frames: &impl Frames, table: u64, index: usize) -> u64 {
    let Ok(descriptor) = frames.read(table, index);
    descriptor
}

/// The table to which an entry points.
fn child(frames: &impl Frames, table: u64, level: Level, index: usize) -> Option<(u64, Level)> {
    let below = level.next()?;
    match Vmsa::entry(level, entry(frames, table, index)) {
        Entry::Table(next) => Some((next, below)),
        Entry::Leaf(_) | Entry::Invalid => None,
    }
}

/// A garbage table being scanned.
#[derive(Debug)]
struct Scan {
    table: u64,
    level: Level,
    /// The next entry. The first one is a link while the table is on a list, so the table it pointed to is on
    /// one, too.
    index: usize,
}

/// The frames of one VM.
#[derive(Debug)]
pub(super) struct Reserve {
    all: Range<u64>,
    /// The first never-used frame.
    fresh: u64,
    free: List,
    /// Garbage tables by level.
    garbage: [List; 4],
    scan: Option<Scan>,
}

impl Reserve {
    /// A reserve of these frames, of arbitrary contents.
    pub fn new(all: Range<u64>) -> Self {
        Self { fresh: all.start, all, free: List::default(), garbage: Default::default(), scan: None }
    }

    /// Takes all frames back. No table may be in use.
    pub fn reset(&mut self) {
        *self = Self::new(self.all.clone());
    }

    /// Takes a frame of arbitrary contents.
    fn take(&mut self, frames: &mut impl Frames) -> Option<u64> {
        self.free.pop(frames).or_else(|| self.take_fresh()).or_else(|| self.reclaim(frames))
    }

    fn take_fresh(&mut self) -> Option<u64> {
        let frame = self.fresh;
        let next = frame.checked_add(PAGE_SIZE).filter(|&next| next <= self.all.end)?;
        self.fresh = next;
        Some(frame)
    }

    /// Puts a table with everything below it on the garbage lists.
    fn discard(&mut self, frames: &mut impl Frames, table: u64, level: Level) {
        let mut next = Some((table, level));
        // Its first entry becomes a link: the table it pointed to goes on a list, too, and so on down to the
        // last level.
        while let Some((table, level)) = next {
            next = child(frames, table, level, 0);
            self.garbage[level as usize].push(frames, table);
        }
    }

    /// Takes a frame out of the garbage.
    fn reclaim(&mut self, frames: &mut impl Frames) -> Option<u64> {
        loop {
            if let Some(frame) = self.garbage[Level::L3 as usize].pop(frames) {
                return Some(frame);
            }
            let mut scan = match self.scan.take() {
                Some(scan) => scan,
                None => self.next_scan(frames)?,
            };
            let found = (scan.index..ENTRIES).find_map(|index| Some((index, child(frames, scan.table, scan.level, index)?)));
            let Some((index, (table, level))) = found else { return Some(scan.table) };
            scan.index = index + 1;
            self.scan = Some(scan);
            self.discard(frames, table, level);
        }
    }

    /// The next table to scan: of the lowest level, so that few are pending.
    fn next_scan(&mut self, frames: &impl Frames) -> Option<Scan> {
        [Level::L2, Level::L1, Level::L0].into_iter().find_map(|level| {
            let table = self.garbage[level as usize].pop(frames)?;
            Some(Scan { table, level, index: 1 })
        })
    }
}

/// The reserve as page-table memory.
pub(super) struct Tables<'a, M> {
    pub frames: &'a mut M,
    pub reserve: &'a mut Reserve,
}

impl<M: Frames> Tables<'_, M> {
    /// Empties a one-page root with one invalidation: the tables it points to become garbage. The root itself
    /// stays, because CPUs have it loaded, so its entries move to a frame. Returns `false`, without changes,
    /// if there is no frame, or the root is larger.
    pub fn take_entries(&mut self, root: u64, size: u64, level: Level, tlb: &mut impl Maintenance) -> bool {
        if size != PAGE_SIZE {
            return false;
        }
        let Some(copy) = self.reserve.take(self.frames) else { return false };
        for index in 0..ENTRIES {
            let descriptor = entry(self.frames, root, index);
            self.frames.write(copy, index, descriptor);
            if descriptor != 0 {
                self.frames.write(root, index, 0);
            }
        }
        tlb.invalidate_all();
        tlb.complete();
        self.reserve.discard(self.frames, copy, level);
        true
    }
}

impl<M: Frames> TableRead for Tables<'_, M> {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        self.frames.read(table, index)
    }
}

impl<M: Frames> TableMemory for Tables<'_, M> {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        self.frames.write(table, index, descriptor);
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = self.reserve.take(self.frames)?;
        self.frames.zero(frame);
        Some(frame)
    }

    fn free(&mut self, table: u64) {
        self.reserve.free.push(self.frames, table);
    }

    fn defer(&mut self, table: u64, level: Level) -> bool {
        self.reserve.discard(self.frames, table, level);
        true
    }
}
