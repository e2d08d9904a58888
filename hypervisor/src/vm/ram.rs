//! A VM's RAM: its location, and which blocks are filled.
//!
//! A block of RAM is filled and mapped when the guest first touches it and faults in the second stage. Stile's own
//! accesses for a guest fill single pages without mapping them. The start of a VM therefore takes the same time
//! whatever its size, and each vCPU pays for the memory that it touches. A reset unmaps the blocks that files are
//! loaded into; the next touch loads the files again.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use stile_blob::{Files, Load, MAX_LOADS, Source};
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::changes::Changes;
use stile_paging::first_touch::{BLOCK_SIZE, Block, EarlyPages, PIECE_SIZE};
use stile_paging::frames::{MAX_PIECES, Piece};
use stile_paging::given::GivenPages;

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::arena::Arena;
use crate::memory;

/// See [`Ram::unfilled`].
pub(super) const NOT_FILLING: usize = usize::MAX;

/// The RAM of a VM.
pub struct Ram {
    /// Location.
    pieces: heapless::Vec<Piece, MAX_PIECES>,
    /// The files to load, and their location.
    files: Files<'static>,
    pub(super) loads: heapless::Vec<Load, MAX_LOADS>,
    /// Address of the first block.
    pub(super) base: u64,
    /// State of all blocks from there to the end of RAM.
    pub(super) blocks: &'static [Block],
    /// First block that [`Vm::fill_ram`](super::Vm::fill_ram) has not yet found filled; [`NOT_FILLING`] before its
    /// first call.
    pub(super) unfilled: AtomicUsize,
    /// Position of [`Vm::drain_files`](super::Vm::drain_files): the load, and the block of its extent.
    pub(super) undrained: TicketLock<(usize, usize)>,
    /// Progress of [`Vm::clear_ram`](super::Vm::clear_ram).
    pub(super) cleared: AtomicU64,
    /// End of the clear part of the block that is being restored.
    pub(super) restored: AtomicU64,
    /// Pages that Stile filled for its own accesses, by block.
    early: &'static [EarlyPages],
    /// Pages of tracked blocks that change.
    changes: &'static [Changes],
    /// Its blocks are tracked, or were.
    pub(super) was_tracked: AtomicBool,
    /// The VM is being copied.
    pub(super) is_copied: AtomicBool,
    /// The pages of each block that are in the guest's balloon; none if the VM has no balloon.
    pub(super) given: &'static [GivenPages],
    /// Physical addresses of the blocks that have others than by [`Ram::pieces`]; 0 for all others. As many as blocks, or none.
    pub(super) moved: &'static [AtomicU64],
    /// Serializes changes of [`Ram::given`].
    pub(super) balloon: TicketLock<Balloon>,
    /// Number of tables that were set aside to divide tracked blocks: at most one for each block.
    pub(super) tables: AtomicU64,
}

/// Bytes of the states of `count` blocks, with `item` bytes each.
fn table_size(count: u64, item: usize) -> u64 {
    (count.max(1) * item as u64).next_multiple_of(PAGE_SIZE)
}

/// State of a VM's balloon.
pub(super) struct Balloon {
    /// Number of lives of the guest's driver.
    pub(super) life: u32,
    /// Number of blocks without memory.
    pub(super) blocks: u32,
    /// Time from which another block may be released, in ticks of the counter. Each release invalidates translations of all VMs.
    pub(super) next_release: u64,
    /// A lack of memory was reported: once, as a guest can cause it at any time.
    pub(super) is_reported: bool,
}

impl Balloon {
    pub(super) const fn new() -> Balloon {
        Balloon { life: 0, blocks: 0, next_release: 0, is_reported: false }
    }
}

/// Bytes of the states of `count` blocks for a balloon.
fn balloon_size(count: u64, has_balloon: bool) -> u64 {
    if has_balloon { table_size(count, size_of::<GivenPages>()) + table_size(count, size_of::<AtomicU64>()) } else { 0 }
}

/// First address of the first block of pieces in ascending order of address, and number of blocks.
fn blocks(pieces: &[Piece]) -> (u64, u64) {
    let base = pieces.first().map_or(0, |first| first.gpa) & !(BLOCK_SIZE - 1);
    let end = pieces.last().map_or(base, |last| last.gpa + last.size);
    (base, (end - base).div_ceil(BLOCK_SIZE))
}

impl Ram {
    /// Bytes of the arena that [`Ram::new`] takes.
    pub fn memory(pieces: &[Piece], has_balloon: bool) -> u64 {
        let (_, count) = blocks(pieces);
        balloon_size(count, has_balloon)
            + table_size(count, size_of::<Block>())
            + table_size(count, size_of::<EarlyPages>())
            + table_size(count, size_of::<Changes>())
    }

    /// Creates untouched RAM from pieces in ascending order of address.
    ///
    /// # Errors
    /// No memory is left for the state of blocks.
    pub fn new(
        pieces: heapless::Vec<Piece, MAX_PIECES>,
        files: Files<'static>,
        loads: heapless::Vec<Load, MAX_LOADS>,
        has_balloon: bool,
        arena: &'static Arena,
    ) -> Result<Ram, &'static str> {
        let (base, count) = blocks(&pieces);
        let states = arena.allocate_pages(table_size(count, size_of::<Block>()))?;
        let pages = arena.allocate_pages(table_size(count, size_of::<EarlyPages>()))?;
        let changed = arena.allocate_pages(table_size(count, size_of::<Changes>()))?;
        let mut balloon = [0; 2];
        if has_balloon {
            balloon[0] = arena.allocate_pages(table_size(count, size_of::<GivenPages>()))?;
            balloon[1] = arena.allocate_pages(table_size(count, size_of::<AtomicU64>()))?;
        }
        let count = count as usize;
        // SAFETY: the pages are zeroed and used for this only; all-zero is a valid array of unfilled blocks.
        let blocks = unsafe { core::slice::from_raw_parts(Arch::physical(states).cast::<Block>(), count) };
        // SAFETY: the pages are zeroed and used for this only; all-zero is a valid array of blocks without filled
        // pages.
        let early = unsafe { core::slice::from_raw_parts(Arch::physical(pages).cast::<EarlyPages>(), count) };
        // SAFETY: the pages are zeroed and used for this only; all-zero is a valid array of blocks without changes.
        let changes = unsafe { core::slice::from_raw_parts(Arch::physical(changed).cast::<Changes>(), count) };
        let (given, moved): (&[GivenPages], &[AtomicU64]) = match balloon {
            [0, 0] => (&[], &[]),
            // SAFETY: the pages are zeroed and used for this only; all-zero is a valid array of empty sets, and of words.
            [given, moved] => unsafe {
                let given = core::slice::from_raw_parts(Arch::physical(given).cast::<GivenPages>(), count);
                (given, core::slice::from_raw_parts(Arch::physical(moved).cast::<AtomicU64>(), count))
            },
        };
        Ok(Ram {
            pieces,
            files,
            loads,
            base,
            blocks,
            unfilled: AtomicUsize::new(NOT_FILLING),
            undrained: TicketLock::new((0, 0)),
            cleared: AtomicU64::new(base),
            restored: AtomicU64::new(0),
            early,
            changes,
            was_tracked: AtomicBool::new(false),
            is_copied: AtomicBool::new(false),
            given,
            moved,
            balloon: TicketLock::new(Balloon::new()),
            tables: AtomicU64::new(0),
        })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.size).sum()
    }

    /// Frees the RAM, which was cleared and which nothing accesses any more.
    pub fn give_back(&self) {
        memory::free_guest(&self.pieces);
    }

    pub(super) fn index(&self, gpa: u64) -> Option<usize> {
        usize::try_from(gpa.checked_sub(self.base)? / BLOCK_SIZE).ok()
    }

    /// The block that contains an address in RAM, or in a hole between its pieces.
    #[inline]
    pub(super) fn block(&self, gpa: u64) -> Option<&'static Block> {
        self.blocks.get(self.index(gpa)?)
    }

    /// The block that contains an address, and the pages of it that Stile filled.
    pub(super) fn block_and_pages(&self, gpa: u64) -> Option<(&'static Block, &'static EarlyPages)> {
        let index = self.index(gpa)?;
        self.blocks.get(index).zip(self.early.get(index))
    }

    /// The block that contains an address, and its changes.
    pub(super) fn block_and_changes(&self, gpa: u64) -> Option<(&'static Block, &'static Changes)> {
        let index = self.index(gpa)?;
        self.blocks.get(index).zip(self.changes.get(index))
    }

    /// Whether an address is in RAM.
    pub(super) fn contains(&self, gpa: u64) -> bool {
        self.pieces.iter().any(|piece| gpa.checked_sub(piece.gpa).is_some_and(|into| into < piece.size))
    }

    /// The parts of a range that are in RAM. Within one block, if the VM has a balloon, so that blocks may have moved.
    pub(super) fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = Piece> {
        let moved = self.index(start).and_then(|index| self.moved.get(index)).map_or(0, |moved| moved.load(Ordering::Acquire));
        self.pieces.iter().filter_map(move |piece| {
            let (start, end) = (start.max(piece.gpa), end.min(piece.gpa + piece.size));
            let pa = if moved == 0 { piece.pa.wrapping_add(start.wrapping_sub(piece.gpa)) } else { moved + start % BLOCK_SIZE };
            (start < end).then_some(Piece { gpa: start, pa, size: end.wrapping_sub(start) })
        })
    }

    /// Whether files are loaded into a block.
    pub(super) fn has_files(&self, start: u64) -> bool {
        self.loads.iter().any(|load| load.gpa < start + BLOCK_SIZE && load.gpa + load.mem_len > start)
    }

    /// Fills a range of one block, which the caller has claimed. `again`: fills only the parts that files are loaded
    /// into. `stops` is called between pieces of [`PIECE_SIZE`]. Returns the address before which all is filled.
    pub(super) fn write(&self, start: u64, end: u64, again: bool, stops: impl Fn() -> bool) -> u64 {
        for part in self.parts(start, end) {
            let (mut at, end) = (part.gpa, part.gpa + part.size);
            while at < end {
                let run = self.files.contents(&self.loads, at, end);
                let mut done = 0;
                while done < run.len {
                    let from = at + done;
                    if from != start && from.is_multiple_of(PIECE_SIZE) && stops() {
                        return from;
                    }
                    let to = Arch::physical(part.pa + (from - part.gpa));
                    let length = (run.len - done).min(PIECE_SIZE - from % PIECE_SIZE);
                    match run.source {
                        // SAFETY: the piece is in this VM's RAM, in the direct map, in a block that no vCPU can access
                        // before it is mapped; the file is elsewhere, and as long as the run.
                        Source::File(bytes) => unsafe { Arch::copy(to, bytes.as_ptr().add(done as usize), length as usize) },
                        Source::Nothing if again => {}
                        // SAFETY: the piece is in this VM's RAM, in the direct map, in a block that no vCPU can access
                        // before it is mapped.
                        Source::Zeros | Source::Nothing => unsafe { Arch::zero(to, length as usize) },
                    }
                    done += length;
                }
                at += run.len;
            }
        }
        end
    }
}
