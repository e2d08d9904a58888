//! The machine under L1: its second stage for the VM, and the frames of shadows.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;

use stile_nested_arm::shadow::Tlb;
use stile_paging::table::{Attributes, ENTRIES, Invalidation, Level, Maintenance, MemoryType, Stage2Permissions, TableRead, Translation};
use stile_paging::vmid::VmidSlot;

/// Base of the VM's memory, for L1 and on the machine.
pub const RAM: u64 = 0x4000_0000;
pub const PHYSICAL: u64 = 0x12_8000_0000;
/// Size of the VM's memory in bytes.
pub const MEMORY: u64 = 32 << 20;
/// From here on L0 maps single pages, the last of them read-only.
const IN_PAGES: u64 = RAM + (16 << 20);
const READ_ONLY: u64 = RAM + (31 << 20);

/// L0's second stage for the VM.
pub struct Host;

impl Host {
    pub fn translate(&self, l1: u64) -> Option<Translation<Stage2Permissions>> {
        let within = l1.checked_sub(RAM).filter(|&within| within < MEMORY)?;
        let level = if l1 < IN_PAGES { Level::L2 } else { Level::L3 };
        let permissions = if l1 < READ_ONLY { Stage2Permissions::ALL } else { Stage2Permissions::READ };
        Some(Translation {
            output: PHYSICAL + within,
            level,
            attributes: Attributes { memory: MemoryType::Normal, permissions },
            descriptor: 0,
        })
    }
}

/// Memory for the roots and tables of shadows. Counts accesses.
pub struct Frames {
    words: BTreeMap<u64, Box<[u64; ENTRIES]>>,
    next: u64,
    accesses: Cell<usize>,
}

impl Frames {
    pub fn new() -> Self {
        Self { words: BTreeMap::new(), next: 0x100_0000, accesses: Cell::new(0) }
    }

    /// Allocates `size` bytes, aligned to `align`, with each word set to `word`.
    pub fn take(&mut self, size: u64, align: u64, word: u64) -> Range<u64> {
        let start = self.next.next_multiple_of(align);
        self.next = start + size;
        for frame in (start..self.next).step_by(4096) {
            self.words.insert(frame, Box::new([word; ENTRIES]));
        }
        start..self.next
    }

    /// Number of entry reads and writes since the last call. Zeroing a page counts as 64.
    pub fn accesses(&self) -> usize {
        self.accesses.take()
    }

    fn count(&self, accesses: usize) {
        self.accesses.set(self.accesses.get() + accesses);
    }
}

impl TableRead for Frames {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        self.count(1);
        let frame = table + (index / ENTRIES * 4096) as u64;
        Ok(self.words[&frame][index % ENTRIES])
    }
}

impl stile_nested_arm::shadow::Frames for Frames {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        self.count(1);
        let frame = table + (index / ENTRIES * 4096) as u64;
        self.words.get_mut(&frame).expect("a shadow table's frame")[index % ENTRIES] = descriptor;
    }

    fn zero(&mut self, frame: u64) {
        self.count(64);
        **self.words.get_mut(&frame).expect("a frame of the reserve") = [0; ENTRIES];
    }
}

/// Counts maintenance, and checks that it selects a shadow first.
#[derive(Default)]
pub struct Recorder {
    selected: Option<u64>,
    pub invalidations: usize,
}

impl Maintenance for Recorder {
    fn invalidate(&mut self, _: Invalidation) {
        assert!(self.selected.is_some(), "maintenance of nobody's tables");
        self.invalidations += 1;
    }

    fn invalidate_all(&mut self) {
        assert!(self.selected.is_some(), "maintenance of nobody's tables");
        self.invalidations += 1;
    }

    fn complete(&mut self) {}
}

impl Tlb for Recorder {
    fn select(&mut self, _: &VmidSlot, root: u64) {
        self.selected = Some(root);
    }
}
