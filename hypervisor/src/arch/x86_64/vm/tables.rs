//! A VM's second-stage tables: the mappings in them, and the invalidations that their changes need.
//!
//! Neither granting a right nor dividing a page needs an invalidation: the entries from before lead to the same memory, and
//! a CPU that faults by one drops it (the manual, "Invalidating Cached Translation Information").

use stile_board::{map, pc};
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;
use stile_paging::table::{Attributes, Error, Geometry, Level, Mapping, MemoryType, PageTable};

use super::protected::{Deferred, Protected};
use crate::arch::x86_64::host::mmu;
use crate::arch::x86_64::virt::second_stage::{self, Format, Permissions};
use crate::arena::{Arena, Spare};
use crate::memory::TableFrames;

/// Permissions of RAM whose writes are tracked.
const TRACKED: Permissions = Permissions { write: false, execute: true };

/// The second-stage tables of a VM, changed under a lock. Those for all of RAM are preallocated.
pub struct VmTables {
    table: &'static TicketLock<PageTable<Format>>,
    /// Memory for tables.
    arena: &'static Arena,
}

/// Tables that map nothing.
///
/// # Errors
/// The CPU has another format, or memory is insufficient.
pub fn empty(arena: &'static Arena) -> Result<PageTable<Format>, &'static str> {
    let geometry = Geometry::stage1(48, mmu::pa_range()).ok_or("the second stage has no such shape")?;
    let root = arena.allocate_pages(PAGE_SIZE)?;
    PageTable::new(second_stage::format(), geometry, root).map_err(|_| "a second-stage root out of reach")
}

/// Reserves tables for a part of RAM.
///
/// # Errors
/// Memory is insufficient.
pub fn reserve_ram(table: &mut PageTable<Format>, part: &Piece, arena: &'static Arena) -> Result<(), &'static str> {
    table.reserve(&mut { arena }, ram(part)).map_err(|_| "a VM's memory can't be mapped: no memory for tables")
}

/// Mapping of a part of a VM's RAM.
fn ram(part: &Piece) -> Mapping<Permissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: Permissions::ALL };
    Mapping { address: part.gpa, output: part.pa, size: part.size, attributes }
}

/// Mapping of pages with events of devices that the VM serves: data.
fn events(part: &Piece) -> Mapping<Permissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: Permissions { write: true, execute: false } };
    Mapping { attributes, ..ram(part) }
}

impl VmTables {
    /// The tables of a VM that is being created.
    ///
    /// # Errors
    /// Memory is insufficient.
    pub fn new(table: PageTable<Format>, arena: &'static Arena) -> Result<VmTables, &'static str> {
        Ok(VmTables { table: arena.allocate()?.write(TicketLock::new(table)), arena })
    }

    /// The tables.
    pub fn table(&self) -> &'static TicketLock<PageTable<Format>> {
        self.table
    }

    /// Memory for tables.
    pub fn arena(&self) -> &'static Arena {
        self.arena
    }

    /// Maps a part of RAM.
    ///
    /// # Errors
    /// It is already mapped, or no tables were reserved for it.
    pub fn map_ram(&self, part: &Piece) -> Result<(), Error> {
        self.table.lock().map(&mut { self.arena }, ram(part))
    }

    /// [`VmPart::protect_ram`](crate::arch::contract::VmPart::protect_ram).
    pub fn protect_ram(&self, part: &Piece) -> bool {
        let mut table = self.table.lock();
        let is_whole = table.has_block(&TableFrames, part.gpa);
        let done = table.protect(&mut { self.arena }, &mut Deferred, part.gpa, part.size, TRACKED);
        debug_assert!(done.is_ok(), "parts that were mapped as they are need no memory to be protected");
        is_whole
    }

    /// [`VmPart::permit_page`](crate::arch::contract::VmPart::permit_page), of a VM with this decode cache.
    pub fn permit_page(&self, protected: Option<&Protected>, page: u64) -> bool {
        let permit = || self.table.lock().protect(&mut Spare(self.arena), &mut Deferred, page, PAGE_SIZE, Permissions::ALL).is_ok();
        match protected {
            Some(protected) => protected.forget(page, permit),
            None => permit(),
        }
    }

    /// [`VmPart::permit_ram`](crate::arch::contract::VmPart::permit_ram), of a VM with this decode cache.
    ///
    /// A table stays: other CPUs may have cached it. The next [`VmTables::protect_ram`] frees it.
    pub fn permit_ram(&self, protected: Option<&Protected>, part: &Piece) {
        let permit = || {
            let mut table = self.table.lock();
            let is_whole = table.has_block(&TableFrames, part.gpa);
            // Half of a table is not merged.
            let step = if is_whole { part.size } else { Level::L2.size() / 2 };
            for (at, end) in (part.gpa..part.gpa + part.size).step_by(step as usize).map(|at| (at, part.gpa + part.size)) {
                let done = table.protect(&mut { self.arena }, &mut Deferred, at, step.min(end - at), Permissions::ALL);
                debug_assert!(done.is_ok(), "parts that were mapped as they are need no memory to be permitted");
            }
        };
        match protected {
            Some(protected) => protected.clear(permit),
            None => permit(),
        }
    }

    /// Maps a BAR.
    ///
    /// # Errors
    /// Something is mapped there already, or there is no memory for tables.
    pub fn map_device(&self, gpa: u64, pa: u64, size: u64) -> Result<(), Error> {
        let attributes = Attributes { memory: MemoryType::Device, permissions: Permissions { write: true, execute: false } };
        self.table.lock().map(&mut { self.arena }, Mapping { address: gpa, output: pa, size, attributes })
    }

    /// Reserves tables for a part of a server's window on another VM's RAM.
    ///
    /// # Errors
    /// Memory is insufficient, or the CPUs' second stage is too small.
    pub fn reserve_window(&self, part: &Piece) -> Result<(), &'static str> {
        let reserved = self.table.lock().reserve(&mut { self.arena }, ram(part));
        reserved.map_err(|_| "the RAM of a VM's clients can't be mapped: too large for this CPU's second stage, or no memory for tables")
    }

    /// Maps a part of another VM's RAM into a window, if it is not mapped yet.
    pub fn map_window(&self, part: &Piece) {
        let done = self.table.lock().map(&mut { self.arena }, ram(part));
        debug_assert!(matches!(done, Ok(()) | Err(Error::AlreadyMapped(_))), "the tables were made when the VM was");
    }

    /// Reserves tables for the pages with events of a new server's devices, also of those of clients to come.
    ///
    /// # Errors
    /// Memory is insufficient.
    pub fn reserve_events(&self) -> Result<(), &'static str> {
        let all = Piece { gpa: pc::SERVER_EVENTS, pa: 0, size: map::EVENTS_SIZE };
        let reserved = self.table.lock().reserve(&mut { self.arena }, events(&all));
        reserved.map_err(|_| "there is no memory for the tables of a VM's served devices")
    }

    /// Maps the page with the events of a device that the VM serves.
    pub fn map_events(&self, page: &Piece) {
        let done = self.table.lock().map(&mut { self.arena }, events(page));
        debug_assert!(done.is_ok(), "the tables were made when the VM was");
    }

    /// Unmaps whole blocks, as far as they are mapped. Translations stay valid until they are invalidated.
    pub fn unmap(&self, gpa: u64, size: u64) {
        let done = self.table.lock().vacate(&mut { self.arena }, &mut Deferred, gpa, size);
        debug_assert!(done.is_ok(), "whole blocks need no memory to be unmapped");
    }
}
