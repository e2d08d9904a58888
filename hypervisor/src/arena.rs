//! The memory that Stile uses for one VM, apart from the VM's RAM. An arena takes a few blocks of the board's memory,
//! and returns all of them, cleared, when the VM is destroyed: no allocation of a VM can leak.

use core::convert::Infallible;
use core::mem::MaybeUninit;
use core::ops::Range;

use stile_board::MAX_VMS;
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{TableMemory, TableRead};
use stile_sched::CpuSet;

use crate::arch::Arch;
use crate::arch::contract::Host;
use crate::memory::{self, TableFrames};
use crate::nodes;

/// Minimum block size: enough for a small VM.
const LEAST_BLOCK: u64 = 256 << 10;
/// Maximum number of blocks. Each is at least half as large as all before it together.
const BLOCKS: usize = 32;

/// Error text of a failed allocation of an [`Arena`].
pub const NO_MEMORY: &str = "there is no memory left for what Stile keeps for a VM: give VMs less";

/// Memory of one VM.
pub struct Arena(TicketLock<Blocks>);

struct Blocks {
    taken: heapless::Vec<Range<u64>, BLOCKS>,
    /// Unused part of the last block.
    rest: Range<u64>,
    /// End of the clear part at the start of `rest`; at or below that start if none of it is clear.
    clear: u64,
    /// Head of the list of freed frames, each of which starts with the address of the next; 0 ends the list.
    freed: u64,
    /// CPUs near to which blocks are taken.
    near: CpuSet,
}

static ARENAS: [Arena; MAX_VMS] = [const { Arena::new() }; MAX_VMS];

/// The arena of VM `number`.
///
/// # Panics
/// If `number` is out of range.
pub fn of_vm(number: usize) -> &'static Arena {
    &ARENAS[number]
}

/// Bytes that [`Arena::allocate`] takes for a value: a multiple of the page size.
pub const fn room<T>() -> u64 {
    (size_of::<T>() as u64).next_multiple_of(PAGE_SIZE)
}

impl Arena {
    const fn new() -> Arena {
        Arena(TicketLock::new(Blocks { taken: heapless::Vec::new(), rest: 0..0, clear: 0, freed: 0, near: CpuSet::EMPTY }))
    }

    /// Allocates zeroed memory for a value that lives as long as the VM.
    ///
    /// # Errors
    /// [`NO_MEMORY`].
    pub fn allocate<T>(&self) -> Result<&'static mut MaybeUninit<T>, &'static str> {
        const { assert!(align_of::<T>() as u64 <= PAGE_SIZE) };
        let address = self.allocate_pages(room::<T>())?;
        // SAFETY: the pages are in the direct map, aligned, and exclusively this value's until the VM is retired,
        // when no reference to it is left (`vm::retire`).
        Ok(unsafe { &mut *Arch::physical(address).cast() })
    }

    /// Selects the CPUs near to which further memory is taken.
    pub fn prefer(&self, cpus: &CpuSet) {
        self.0.lock().near = *cpus;
    }

    /// Allocates zeroed pages and returns their physical address.
    ///
    /// # Errors
    /// [`NO_MEMORY`].
    pub fn allocate_pages(&self, size: u64) -> Result<u64, &'static str> {
        let (address, clear) = self.0.lock().take(size).ok_or(NO_MEMORY)?;
        // SAFETY: the pages are in the direct map and were just allocated, so that nothing else refers to them.
        unsafe { Arch::zero(Arch::physical(address + clear), (size - clear) as usize) };
        Ok(address)
    }

    /// Clears a bounded piece of the memory for the next allocations, of whole pages and `size` bytes in total. Returns
    /// whether all of that memory is clear: the allocations then take little time.
    ///
    /// # Errors
    /// [`NO_MEMORY`].
    pub fn clear_ahead(&self, size: u64) -> Result<bool, &'static str> {
        let mut blocks = self.0.lock();
        if blocks.rest.end - blocks.rest.start < size {
            blocks.extend(size).ok_or(NO_MEMORY)?;
        }
        let start = blocks.clear.max(blocks.rest.start);
        if start >= blocks.rest.start + size {
            return Ok(true);
        }
        // Leaves time for what the caller does beside it.
        let piece = (blocks.rest.end - start).min(Arch::ZEROED_AT_ONCE / 2);
        // SAFETY: the piece is unused memory of this arena, in the direct map.
        unsafe { Arch::zero(Arch::physical(start), piece as usize) };
        blocks.clear = start + piece;
        Ok(false)
    }

    /// Allocates contiguous pages with undefined contents.
    ///
    /// # Errors
    /// [`NO_MEMORY`].
    #[allow(dead_code, reason = "not every architecture has such a thing")]
    pub fn reserve(&self, size: u64) -> Result<Range<u64>, &'static str> {
        let (start, _) = self.0.lock().take(size).ok_or(NO_MEMORY)?;
        Ok(start..start + size)
    }

    /// Allocates a table for [`Spare`]. Returns whether there was memory for it.
    pub fn spare_table(&'static self) -> bool {
        let table = self.reserve(PAGE_SIZE);
        if let Ok(table) = &table {
            (&mut &*self).free(table.start);
        }
        table.is_ok()
    }

    /// Takes a freed frame, and clears it.
    fn freed(&self) -> Option<u64> {
        let first = {
            let mut blocks = self.0.lock();
            let first = Some(blocks.freed).filter(|&first| first != 0)?;
            blocks.freed = TableFrames.read(first, 0).unwrap_or(0);
            first
        };
        // SAFETY: the frame is in the direct map, and was freed, so that nothing refers to it.
        unsafe { Arch::physical(first).write_bytes(0, PAGE_SIZE as usize) };
        Some(first)
    }

    /// Bytes taken from the board's memory.
    pub fn size(&self) -> u64 {
        self.0.lock().size()
    }

    /// Clears a bounded piece of the memory and frees what is cleared. Returns whether all of it is freed. Called
    /// after the VM was retired.
    pub fn give_back(&self) -> bool {
        let mut blocks = self.0.lock();
        (blocks.rest, blocks.clear, blocks.freed) = (0..0, 0, 0);
        let Some(last) = blocks.taken.last_mut() else { return true };
        let size = (last.end - last.start).min(Arch::ZEROED_AT_ONCE);
        let piece = last.end - size..last.end;
        // SAFETY: the caller guarantees that the VM is retired: nothing uses the block any more.
        unsafe { Arch::zero(Arch::physical(piece.start), size as usize) };
        last.end = piece.start;
        let is_empty = last.is_empty();
        // If the board's free list is full, the piece stays allocated permanently.
        memory::free(piece);
        if is_empty {
            blocks.taken.pop();
        }
        blocks.taken.is_empty()
    }
}

impl Blocks {
    /// Takes pages: their address, and how many of their bytes, from the first one, are clear.
    fn take(&mut self, size: u64) -> Option<(u64, u64)> {
        if self.rest.end - self.rest.start < size {
            let block = self.block((self.size() / 2).max(LEAST_BLOCK).max(size).next_multiple_of(PAGE_SIZE), size)?;
            // Keeps the larger rest.
            let rest = block.start + size..block.end;
            if rest.end - rest.start > self.rest.end - self.rest.start {
                (self.rest, self.clear) = (rest, 0);
            }
            return Some((block.start, 0));
        }
        let start = self.rest.start;
        self.rest.start += size;
        Some((start, self.clear.saturating_sub(start).min(size)))
    }

    /// Begins another block, for allocations of `size` bytes each. `None` if no memory is left.
    fn extend(&mut self, size: u64) -> Option<()> {
        let size = size.next_multiple_of(PAGE_SIZE);
        let several = ((self.size() / 2).max(LEAST_BLOCK) / size).max(1) * size;
        (self.rest, self.clear) = (self.block(several, size)?, 0);
        Some(())
    }

    /// Takes a block of `wanted` bytes, or of `size`.
    fn block(&mut self, wanted: u64, size: u64) -> Option<Range<u64>> {
        let near = nodes::near(&self.near);
        let block = [wanted, size].into_iter().find_map(|size| memory::take(size, &near))?;
        if self.taken.push(block.clone()).is_err() {
            memory::free(block);
            return None;
        }
        Some(block)
    }

    /// Bytes taken from the board's memory.
    fn size(&self) -> u64 {
        self.taken.iter().map(|block| block.end - block.start).sum()
    }
}

impl TableRead for &'static Arena {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        TableFrames.read(table, index)
    }
}

/// Translation tables of a VM.
impl TableMemory for &'static Arena {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        TableFrames.write(table, index, descriptor);
    }

    fn allocate(&mut self) -> Option<u64> {
        self.freed().or_else(|| self.allocate_pages(PAGE_SIZE).ok())
    }

    fn free(&mut self, table: u64) {
        let mut blocks = self.0.lock();
        TableFrames.write(table, 0, blocks.freed);
        blocks.freed = table;
    }
}

/// Translation tables of a VM in frames that were freed, so that the arena does not grow.
pub struct Spare(pub &'static Arena);

impl TableRead for Spare {
    type Error = Infallible;

    fn read(&self, table: u64, index: usize) -> Result<u64, Infallible> {
        TableFrames.read(table, index)
    }
}

impl TableMemory for Spare {
    fn write(&mut self, table: u64, index: usize, descriptor: u64) {
        TableFrames.write(table, index, descriptor);
    }

    fn allocate(&mut self) -> Option<u64> {
        self.0.freed()
    }

    fn free(&mut self, table: u64) {
        self.0.free(table);
    }
}

/// Checks that an arena returns all of its memory, cleared. Part of the hypervisor's one test, because memory is a
/// singleton.
#[cfg(test)]
pub fn check_that_all_comes_back() {
    let mut arena = of_vm(MAX_VMS - 1);
    let before = memory::available();
    for size in [1, 3, 40, 200, 1, 7] {
        let pages = arena.allocate_pages(size * PAGE_SIZE).unwrap();
        // SAFETY: the pages were just allocated, so that nothing else refers to them.
        let bytes = unsafe { core::slice::from_raw_parts_mut(Arch::physical(pages), (size * PAGE_SIZE) as usize) };
        assert!(memory::tests::is_clear(bytes));
        bytes.fill(0xaa);
    }
    // Two of three allocations have been cleared before.
    for size in [5 * PAGE_SIZE, 3 * Arch::ZEROED_AT_ONCE / 2] {
        while !arena.clear_ahead(size).unwrap() {}
        let sizes = [size - PAGE_SIZE, PAGE_SIZE, Arch::ZEROED_AT_ONCE];
        let places = sizes.map(|size| arena.allocate_pages(size).unwrap());
        assert_eq!(places[1], places[0] + sizes[0], "they are in the part that is clear");
        for (at, size) in places.into_iter().zip(sizes) {
            // SAFETY: the pages were just allocated, so that nothing else refers to them.
            let bytes = unsafe { core::slice::from_raw_parts_mut(Arch::physical(at), size as usize) };
            assert!(memory::tests::is_clear(bytes));
            bytes.fill(0xaa);
        }
    }
    let frames: Vec<u64> = (0..10).map(|_| TableMemory::allocate(&mut arena).unwrap()).collect();
    let size = arena.size();
    frames.iter().for_each(|&frame| arena.free(frame));
    let again: Vec<u64> = (0..10).map(|_| TableMemory::allocate(&mut arena).unwrap()).collect();
    assert!(again.iter().rev().eq(&frames), "freed frames are used first");
    assert_eq!((arena.size(), memory::available()), (size, before - size));
    assert!(arena.allocate_pages(1 << 40).is_err(), "no board has that much");
    while !arena.give_back() {}
    assert_eq!((memory::available(), arena.size()), (before, 0));
    let block = memory::take(size, &nodes::Near::new()).unwrap();
    // SAFETY: the block was just allocated, so that nothing else refers to it.
    let bytes = unsafe { core::slice::from_raw_parts(Arch::physical(block.start), size as usize) };
    assert!(memory::tests::is_clear(bytes), "memory that came back is clear");
    memory::free(block);
}
