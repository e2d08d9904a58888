//! Allocation of physical memory.

use core::convert::Infallible;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::frames::{Error, Frames, MAX_PIECES, Piece, Region};
use stile_paging::table::{TableMemory, TableRead};

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::console::log;
use crate::nodes::Near;

/// Maximum number of separate free regions: VMs come and go, each with up to [`MAX_PIECES`] pieces of RAM and a few
/// arena blocks.
const REGIONS: usize = 256;

static MEMORY: TicketLock<Option<Frames<REGIONS>>> = TicketLock::new(None);

fn region(span: &Range<u64>) -> Region {
    Region { base: span.start, size: span.end.saturating_sub(span.start) }
}

/// Takes over the board's memory, apart from reserved regions. `block`: memory with contents, which is allocated if all of it is free
/// memory ([`is_taken`]).
pub fn setup<'a>(
    ram: impl IntoIterator<Item = &'a Range<u64>>,
    reserved: impl IntoIterator<Item = &'a Range<u64>>,
    block: Option<&Range<u64>>,
) {
    let frames = Frames::new(ram.into_iter().map(region), reserved.into_iter().filter(|span| !span.is_empty()).map(region));
    let mut frames = frames.unwrap_or_else(|error| panic!("the board's memory map is unusable: {error:?}"));
    if let Some(Region { base, size }) = block.map(region) {
        let _ = frames.take_block(base, size);
    }
    *MEMORY.lock() = Some(frames);
}

/// Whether all of a block is the board's memory, unreserved and allocated.
pub fn is_taken(block: &Range<u64>) -> bool {
    let Region { base, size } = region(block);
    with(|memory| memory.is_taken(base, size))
}

fn with<T>(work: impl FnOnce(&mut Frames<REGIONS>) -> T) -> T {
    work(MEMORY.lock().as_mut().expect("memory is set up first of all"))
}

/// Allocates, unless a test makes this allocation fail.
fn allocate_by<T>(work: impl FnOnce(&mut Frames<REGIONS>) -> Result<T, Error>) -> Result<T, Error> {
    #[cfg(test)]
    if tests::fails() {
        return Err(Error::OutOfMemory);
    }
    with(work)
}

/// Free memory in bytes.
pub fn available() -> u64 {
    with(|memory| memory.available())
}

/// Error text of a failed allocation with the machine's lifetime.
const NO_MEMORY: &str = "there is no memory left for what Stile keeps for itself: give VMs less";

/// Allocates zeroed memory for a value with the machine's lifetime.
///
/// # Errors
/// A description: no memory is left.
pub fn allocate<T>() -> Result<&'static mut MaybeUninit<T>, &'static str> {
    let size = (size_of::<T>() as u64).next_multiple_of(PAGE_SIZE);
    let address = allocate_by(|memory| memory.alloc_block(size, (align_of::<T>() as u64).max(PAGE_SIZE))).map_err(|_| NO_MEMORY)?;
    let memory = Arch::physical(address);
    // SAFETY: the block is in the direct map, has the right size and alignment, was just allocated and is never
    // freed.
    unsafe {
        memory.write_bytes(0, size as usize);
        Ok(&mut *memory.cast())
    }
}

/// Allocates a block of zeroed pages for Stile and returns its physical address.
///
/// # Errors
/// As from [`allocate`].
pub fn allocate_pages(size: u64) -> Result<u64, &'static str> {
    allocate_pages_near(size, &Near::new())
}

/// [`allocate_pages`], if possible in memory `near`.
///
/// # Errors
/// As from [`allocate`].
pub fn allocate_pages_near(size: u64, near: &Near) -> Result<u64, &'static str> {
    let address = allocate_by(|memory| memory.alloc_block_near(size, PAGE_SIZE, near)).map_err(|_| NO_MEMORY)?;
    // SAFETY: the block is in the direct map and was just allocated, so that nothing else refers to it.
    unsafe { Arch::physical(address).write_bytes(0, size as usize) };
    Ok(address)
}

/// Allocates a block of pages with undefined contents, if possible `near`; `None` if no memory is left.
pub fn take(size: u64, near: &Near) -> Option<Range<u64>> {
    let start = allocate_by(|memory| memory.alloc_block_near(size, PAGE_SIZE, near)).ok()?;
    Some(start..start + size)
}

/// Allocates a block with the given alignment.
pub fn take_aligned(size: u64, alignment: u64) -> Option<Range<u64>> {
    let start = allocate_by(|memory| memory.alloc_block(size, alignment)).ok()?;
    Some(start..start + size)
}

/// Frees pages from [`take`] or [`allocate_guest`], the block of [`setup`], or a part of them, that nothing uses any more.
pub fn free(pages: Range<u64>) {
    if let Err(error) = with(|memory| memory.free_block(pages.start, pages.end - pages.start)) {
        log!("{} KiB of memory at {:#x} are lost: {error:?}", (pages.end - pages.start) >> 10, pages.start);
    }
}

/// Most separate regions of free memory with parts that VMs gave back: the rest is for what VMs free when they end.
const REGIONS_OF_PARTS: usize = REGIONS / 4;

/// Frees a part of a guest's memory, which was cleared, and which nothing uses any more. Returns false if free memory were in too many
/// regions: the memory is the guest's then.
#[allow(dead_code, reason = "not every architecture has served devices")]
pub fn free_part(part: Range<u64>) -> bool {
    with(|memory| memory.free_part(part.start, part.end - part.start, REGIONS_OF_PARTS)).is_ok()
}

/// Frees a guest's memory, which was cleared.
pub fn free_guest(pieces: &[Piece]) {
    pieces.iter().for_each(|piece| free(piece.pa..piece.pa + piece.size));
}

/// Allocates memory for a guest, to be mapped at `gpa`, if possible `near`.
///
/// # Errors
/// There is too little memory, or it is in too many pieces.
pub fn allocate_guest(gpa: u64, size: u64, near: &Near) -> Result<heapless::Vec<Piece, MAX_PIECES>, Error> {
    allocate_by(|memory| memory.alloc_memory_near(gpa, size, near))
}

/// Tables in frames that are accessed through the direct map.
pub struct TableFrames;

impl TableFrames {
    fn entry(table: u64, index: usize) -> &'static AtomicU64 {
        // SAFETY: the walker passes only tables that `allocate` returned, and indices within them; all accesses are
        // atomic.
        unsafe { &*Arch::physical(table).cast::<AtomicU64>().add(index) }
    }
}

impl TableRead for TableFrames {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        Ok(Self::entry(table, index).load(Ordering::Relaxed))
    }
}

impl TableMemory for TableFrames {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        Self::entry(table, index).store(descriptor, Ordering::Release);
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = allocate_by(Frames::alloc_frame).ok()?;
        // SAFETY: the frame is in the direct map and was just allocated, so that nothing else refers to it.
        unsafe { Arch::physical(frame).write_bytes(0, PAGE_SIZE as usize) };
        Some(frame)
    }

    fn free(&mut self, table: u64) {
        let freed = with(|memory| memory.free_frame(table));
        debug_assert!(freed.is_ok(), "a table that was not allocated");
    }
}

/// Injection of allocation failures for tests.
#[cfg(test)]
pub mod tests {
    use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::Mutex;

    /// Called by the next allocation.
    pub static AT_ALLOCATION: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

    /// Number of allocations that succeed before the others fail.
    static BEFORE: AtomicU64 = AtomicU64::new(u64::MAX);
    static FAILED: AtomicBool = AtomicBool::new(false);

    /// Makes all allocations after the next `before` fail.
    pub fn fail_after(before: u64) {
        BEFORE.store(before, Ordering::Relaxed);
        FAILED.store(false, Ordering::Relaxed);
    }

    /// Ends the injection. Returns whether an allocation failed.
    pub fn fail_no_more() -> bool {
        BEFORE.store(u64::MAX, Ordering::Relaxed);
        FAILED.load(Ordering::Relaxed)
    }

    /// Whether all bytes are zero. Slices are compared as a whole, which Miri does at once.
    pub fn is_clear(bytes: &[u8]) -> bool {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        bytes.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()])
    }

    pub(super) fn fails() -> bool {
        let work = AT_ALLOCATION.lock().unwrap().take();
        if let Some(work) = work {
            work();
        }
        match BEFORE.load(Ordering::Relaxed) {
            u64::MAX => false,
            0 => {
                FAILED.store(true, Ordering::Relaxed);
                true
            }
            left => {
                BEFORE.store(left - 1, Ordering::Relaxed);
                false
            }
        }
    }
}
