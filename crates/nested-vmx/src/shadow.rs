//! Shadow extended page tables of one virtual processor: from L2's addresses to the machine's, combined from L1's tables and L0's.
//!
//! They act as a large TLB: filled at L2's EPT violations, emptied by the INVEPT that L1 must execute after a change of
//! its tables. INVEPT is local to a processor, as the shadows are. Frames are allocated in order and only freed all
//! together, when none is left: this bounds each operation.

use crate::ept::Rights;

/// Number of shadows: L1's tables that are remembered at a time.
const SHADOWS: usize = 4;
const ENTRIES: usize = 512;
const FRAME: u64 = 4096;

/// Bit 7 of an entry: a page of more than 4 KiB.
const LARGE: u64 = 1 << 7;
/// Write-back, regardless of the guest's PAT.
const WRITE_BACK: u64 = 6 << 3 | 1 << 6;
const TABLE: u64 = 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Access to the frames.
pub trait Frames {
    /// Reads an entry of a table.
    fn read(&self, table: u64, index: usize) -> u64;
    /// Writes an entry of a table.
    fn write(&mut self, table: u64, index: usize, entry: u64);
    /// Zeroes a frame.
    fn zero(&mut self, frame: u64);
    /// Removes translations derived from the table with this root.
    fn invalidate(&mut self, root: u64);
}

/// A page to be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// Any address in it, of L2.
    pub guest: u64,
    /// Its start in the machine's memory.
    pub machine: u64,
    /// log2 of its size: 12 or 21.
    pub shift: u32,
    /// Accesses that L2 may make.
    pub rights: Rights,
}

#[derive(Clone, Copy, Debug)]
struct Shadow {
    root: u64,
    /// The root of L1's tables; `None` if unused.
    of: Option<u64>,
    is_empty: bool,
    used: u64,
}

/// The shadows.
#[derive(Debug)]
pub struct Shadows {
    shadows: [Shadow; SHADOWS],
    first: u64,
    next: u64,
    end: u64,
    clock: u64,
    assignments: u64,
}

impl Shadows {
    /// Empty shadows in zeroed memory: at least 8 frames.
    pub fn new(memory: core::ops::Range<u64>) -> Self {
        let root = |index: usize| memory.start + FRAME * index as u64;
        let shadows = core::array::from_fn(|index| Shadow { root: root(index), of: None, is_empty: true, used: 0 });
        let first = root(SHADOWS);
        Self { shadows, first, next: first, end: memory.end, clock: 0, assignments: 0 }
    }

    /// Number of times that a shadow has been assigned to other tables of L1's: while it is the same, so are the results of
    /// [`root`](Self::root).
    pub const fn assignments(&self) -> u64 {
        self.assignments
    }

    /// The root of the shadow of L1's tables with root `of`.
    pub fn root(&mut self, of: u64, frames: &mut impl Frames) -> u64 {
        self.clock += 1;
        let at = match self.shadows.iter().position(|shadow| shadow.of == Some(of)) {
            Some(at) => at,
            None => {
                let oldest = self.shadows.iter().enumerate().min_by_key(|(_, shadow)| (shadow.of.is_some(), shadow.used));
                let at = oldest.map_or(0, |(at, _)| at);
                self.shadows[at].empty(frames);
                self.assignments += 1;
                at
            }
        };
        let shadow = &mut self.shadows[at];
        shadow.of = Some(of);
        shadow.used = self.clock;
        shadow.root
    }

    /// Empties the shadow of L1's tables with this root; all of them without one.
    pub fn invalidate(&mut self, of: Option<u64>, frames: &mut impl Frames) {
        for shadow in self.shadows.iter_mut().filter(|shadow| of.is_none() || shadow.of == of) {
            shadow.empty(frames);
        }
    }

    /// Invalidates a processor's cached translations of the shadows.
    pub fn arrive(&self, frames: &mut impl Frames) {
        for shadow in &self.shadows {
            frames.invalidate(shadow.root);
        }
    }

    /// Takes all frames back.
    pub fn reset(&mut self, frames: &mut impl Frames) {
        self.invalidate(None, frames);
        self.shadows.iter_mut().for_each(|shadow| shadow.of = None);
        self.assignments += 1;
        self.next = self.first;
    }

    fn take(&mut self, frames: &mut impl Frames) -> Option<u64> {
        let frame = self.next;
        let next = frame.checked_add(FRAME).filter(|&next| next <= self.end)?;
        self.next = next;
        frames.zero(frame);
        Some(frame)
    }

    /// Maps a page in the shadow with this root, which must be one of these. If the frames are used up, all shadows are emptied first.
    pub fn map(&mut self, root: u64, page: Page, frames: &mut impl Frames) {
        if !self.try_map(root, page, frames) {
            self.invalidate(None, frames);
            self.next = self.first;
            // Needs at most three tables, for which the empty memory has room.
            self.try_map(root, page, frames);
        }
    }

    fn try_map(&mut self, root: u64, page: Page, frames: &mut impl Frames) -> bool {
        let Some(shadow) = self.shadows.iter_mut().find(|shadow| shadow.root == root) else { return true };
        shadow.is_empty = false;
        let mut table = root;
        let mut shift = 39;
        while shift > page.shift {
            let index = (page.guest >> shift) as usize % ENTRIES;
            let entry = frames.read(table, index);
            table = if entry & TABLE != 0 && entry & LARGE == 0 {
                entry & ADDRESS
            } else {
                // A table replaces a larger page: L1 has replaced its page by smaller ones. The others are filled when they are used.
                let Some(new) = self.take(frames) else { return false };
                frames.write(table, index, new | TABLE);
                if entry != 0 {
                    frames.invalidate(root);
                }
                new
            };
            shift -= 9;
        }
        let index = (page.guest >> shift) as usize % ENTRIES;
        let old = frames.read(table, index);
        let large = if shift > 12 { LARGE } else { 0 };
        frames.write(table, index, page.machine & ADDRESS | large | WRITE_BACK | u64::from(page.rights.0));
        if old != 0 {
            frames.invalidate(root);
        }
        true
    }
}

impl Shadow {
    fn empty(&mut self, frames: &mut impl Frames) {
        if !self.is_empty {
            frames.zero(self.root);
            frames.invalidate(self.root);
            self.is_empty = true;
        }
    }
}

#[cfg(test)]
mod tests;
