//! Physical memory: who has it.

use core::convert::Infallible;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use stile_paging::PAGE_SIZE;
use stile_paging::frames::{Error, Frames, MAX_PIECES, Piece, Region};
use stile_paging::table::{TableMemory, TableRead};
use stile_sched::lock::TicketLock;

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::console::log;

/// Separate free regions that there may be: VMs come and go, each with up to [`MAX_PIECES`] of RAM and a few of Stile's own.
const REGIONS: usize = 256;

static MEMORY: TicketLock<Option<Frames<REGIONS>>> = TicketLock::new(None);

fn region(span: &Range<u64>) -> Region {
    Region { base: span.start, size: span.end.saturating_sub(span.start) }
}

/// Takes the board's memory over, but for what is reserved.
pub fn setup<'a>(ram: impl IntoIterator<Item = &'a Range<u64>>, reserved: impl IntoIterator<Item = &'a Range<u64>>) {
    let frames = Frames::new(ram.into_iter().map(region), reserved.into_iter().filter(|span| !span.is_empty()).map(region));
    *MEMORY.lock() = Some(frames.unwrap_or_else(|error| panic!("the board's memory map is unusable: {error:?}")));
}

fn with<T>(work: impl FnOnce(&mut Frames<REGIONS>) -> T) -> T {
    work(MEMORY.lock().as_mut().expect("memory is set up first of all"))
}

/// Bytes that are free.
pub fn available() -> u64 {
    with(|memory| memory.available())
}

/// Zeroed memory for a value that lives as long as the machine.
///
/// # Panics
/// If there is none: this is for what Stile can't start without.
pub fn allocate<T>() -> &'static mut MaybeUninit<T> {
    let size = (size_of::<T>() as u64).next_multiple_of(PAGE_SIZE);
    let address = with(|memory| memory.alloc_block(size, (align_of::<T>() as u64).max(PAGE_SIZE)));
    let address = address.unwrap_or_else(|error| panic!("no memory for {size} bytes of Stile's own: {error:?}"));
    let memory = Arch::physical(address);
    // SAFETY: the block is in the direct map, of the right size and alignment, and nobody else's from now on.
    unsafe {
        memory.write_bytes(0, size as usize);
        &mut *memory.cast()
    }
}

/// A block of zeroed pages of Stile's own; its physical address.
///
/// # Panics
/// As [`allocate`].
pub fn allocate_pages(size: u64) -> u64 {
    let address = with(|memory| memory.alloc_block(size, PAGE_SIZE));
    let address = address.unwrap_or_else(|error| panic!("no memory for {size} bytes of Stile's own: {error:?}"));
    // SAFETY: the block is in the direct map and nobody else's.
    unsafe { Arch::physical(address).write_bytes(0, size as usize) };
    address
}

/// A block of pages of any content; `None` if there is none.
pub fn take(size: u64) -> Option<Range<u64>> {
    let start = with(|memory| memory.alloc_block(size, PAGE_SIZE)).ok()?;
    Some(start..start + size)
}

/// Gives back pages of [`take`] or [`allocate_guest`], any part of them, which nobody uses any more.
pub fn free(pages: Range<u64>) {
    if let Err(error) = with(|memory| memory.free_block(pages.start, pages.end - pages.start)) {
        log!("{} KiB of memory at {:#x} are lost: {error:?}", (pages.end - pages.start) >> 10, pages.start);
    }
}

/// Gives back a guest's memory, which is clear.
pub fn free_guest(pieces: &[Piece]) {
    pieces.iter().for_each(|piece| free(piece.pa..piece.pa + piece.size));
}

/// Memory for a guest, to be mapped at `gpa`.
///
/// # Errors
/// If there is not enough, or it is in too many pieces.
pub fn allocate_guest(gpa: u64, size: u64) -> Result<heapless::Vec<Piece, MAX_PIECES>, Error> {
    with(|memory| memory.alloc_memory(gpa, size))
}

/// Tables in frames that are reached through the direct map.
pub struct TableFrames;

impl TableFrames {
    fn entry(table: u64, index: usize) -> &'static AtomicU64 {
        // SAFETY: the walker names only tables that `allocate` gave it, and indices inside them; all accesses are atomic.
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
        let frame = with(|memory| memory.alloc_frame()).ok()?;
        // SAFETY: the frame is in the direct map and nobody else's.
        unsafe { Arch::physical(frame).write_bytes(0, PAGE_SIZE as usize) };
        Some(frame)
    }

    fn free(&mut self, table: u64) {
        let freed = with(|memory| memory.free_frame(table));
        debug_assert!(freed.is_ok(), "a table that was not allocated");
    }
}
