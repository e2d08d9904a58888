//! A VM's second-stage tables: the mappings in them, and the invalidations that their changes need.

use stile_board::map;
use stile_firmware::gicv2::Gicv2;
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;
use stile_paging::table::{
    Attributes, ENTRIES, Error, Invalidation, Level, Maintenance, Mapping, MemoryType, PageTable, Stage2, Stage2Permissions, TableRead,
};

use super::second_stage;
use crate::arch::aarch64::host::sysreg::dsb_ish;
use crate::arch::aarch64::nested::shadows::HostTranslation;
use crate::arena::{Arena, Spare};
use crate::memory::TableFrames;

/// Permissions of RAM whose writes are tracked.
const TRACKED: Stage2Permissions = Stage2Permissions::READ_EXECUTE;

/// The second-stage tables of a VM, changed under a lock. Those for all of RAM are preallocated.
pub struct VmTables {
    table: TicketLock<PageTable<Stage2>>,
    root: u64,
    /// Memory for tables.
    arena: &'static Arena,
}

/// Tables that map nothing.
///
/// # Errors
/// The CPU has another format, or memory is insufficient.
pub fn empty(arena: &'static Arena) -> Result<PageTable<Stage2>, &'static str> {
    let geometry = second_stage::geometry();
    if geometry.root_size() != PAGE_SIZE {
        return Err("second-stage tables of this CPU would have a root of several pages");
    }
    let root = arena.allocate_pages(PAGE_SIZE)?;
    PageTable::new(Stage2 { forced_write_back: false }, geometry, root).map_err(|_| "a second-stage root out of reach")
}

/// Reserves tables for a part of RAM.
///
/// # Errors
/// Memory is insufficient, or the part is beyond the CPUs' second stage.
pub fn reserve_ram(table: &mut PageTable<Stage2>, part: &Piece, arena: &'static Arena) -> Result<(), &'static str> {
    table
        .reserve(&mut { arena }, ram(part))
        .map_err(|_| "a VM's memory can't be mapped: too large for this CPU's second stage, or no memory for tables")
}

/// Mapping of normal memory.
fn normal(part: &Piece, permissions: Stage2Permissions) -> Mapping<Stage2Permissions> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions };
    Mapping { address: part.gpa, output: part.pa, size: part.size, attributes }
}

/// Mapping of a part of a VM's RAM.
fn ram(part: &Piece) -> Mapping<Stage2Permissions> {
    normal(part, Stage2Permissions::ALL)
}

/// Mapping of memory that the guest can only read, such as the flash while no command is in progress.
fn read_only(piece: &Piece) -> Mapping<Stage2Permissions> {
    normal(piece, Stage2Permissions::READ)
}

/// Mapping of a page with events for a server.
fn events(page: &Piece) -> Mapping<Stage2Permissions> {
    normal(page, Stage2Permissions::READ_WRITE)
}

/// Mapping of a device's registers.
fn device(gpa: u64, pa: u64, size: u64) -> Mapping<Stage2Permissions> {
    let attributes = Attributes { memory: MemoryType::Device, permissions: Stage2Permissions::READ_WRITE };
    Mapping { address: gpa, output: pa, size, attributes }
}

impl VmTables {
    /// The tables of a VM that is being created.
    pub fn new(table: PageTable<Stage2>, arena: &'static Arena) -> VmTables {
        dsb_ish();
        let root = table.root();
        VmTables { table: TicketLock::new(table), root, arena }
    }

    /// Physical address of the root.
    #[inline(always)]
    pub fn root(&self) -> u64 {
        self.root
    }

    /// The tables, before another CPU knows of them.
    pub fn get_mut(&mut self) -> &mut PageTable<Stage2> {
        self.table.get_mut()
    }

    /// Reserves tables for a mapping, and maps it.
    fn add(&self, mapping: Mapping<Stage2Permissions>) -> Result<(), Error> {
        let mut table = self.table.lock();
        let mapped = table.reserve(&mut { self.arena }, mapping).and_then(|()| table.map(&mut { self.arena }, mapping));
        dsb_ish();
        mapped
    }

    /// Maps memory that the guest can only read into the tables of a new VM.
    ///
    /// # Errors
    /// Memory is insufficient.
    pub fn map_read_only(&self, piece: &Piece) -> Result<(), &'static str> {
        self.add(read_only(piece)).map_err(|_| "there is no memory for the tables of a VM's read-only memory")
    }

    /// Maps a GICv2's virtual CPU interface as that of a new VM's guest, except its second page: writes of GICC_DIR trap.
    ///
    /// # Errors
    /// Memory is insufficient.
    pub fn map_interface(&self, gic: &Gicv2) -> Result<(), &'static str> {
        let page = device(map::GICC_BASE, gic.gicv.start, PAGE_SIZE);
        self.add(page).map_err(|_| "there is no memory for the tables of a VM's interrupt controller")
    }

    /// Maps a part of RAM.
    ///
    /// # Errors
    /// It is already mapped, or no tables were reserved for it.
    pub fn map_ram(&self, part: &Piece) -> Result<(), Error> {
        self.table.lock().map(&mut { self.arena }, ram(part))?;
        dsb_ish();
        Ok(())
    }

    /// [`VmPart::protect_ram`](crate::arch::contract::VmPart::protect_ram).
    pub fn protect_ram(&self, part: &Piece) -> bool {
        let mut table = self.table.lock();
        let is_whole = table.has_block(&TableFrames, part.gpa);
        let done = table.protect(&mut { self.arena }, &mut Deferred, part.gpa, part.size, TRACKED);
        debug_assert!(done.is_ok(), "parts that were mapped as they are need no memory to be protected");
        is_whole
    }

    /// [`VmPart::permit_page`](crate::arch::contract::VmPart::permit_page).
    pub fn permit_page(&self, page: u64) -> bool {
        let done = self.table.lock().protect(&mut Spare(self.arena), &mut Division, page, PAGE_SIZE, Stage2Permissions::ALL);
        // Also if the page was writable already: this CPU has the entry from before.
        invalidate_page(page);
        done.is_ok()
    }

    /// [`VmPart::permit_ram`](crate::arch::contract::VmPart::permit_ram).
    pub fn permit_ram(&self, part: &Piece) {
        let done = self.table.lock().protect(&mut { self.arena }, &mut AtOnce, part.gpa, part.size, Stage2Permissions::ALL);
        debug_assert!(done.is_ok(), "parts that were mapped as they are need no memory to be permitted");
        // Also if all pages were writable already: other CPUs may have entries from before, which no later fault would drop.
        AtOnce.complete();
    }

    /// Unmaps whole blocks, as far as they are mapped. Translations stay valid until they are invalidated.
    pub fn unmap(&self, gpa: u64, size: u64) {
        let done = self.table.lock().vacate(&mut { self.arena }, &mut Deferred, gpa, size);
        debug_assert!(done.is_ok(), "whole blocks need no memory to be unmapped");
    }

    /// Invalidates translations of unmapped memory on all CPUs. The VM's VMID is in force on this one.
    pub fn complete_unmap(&self) {
        AtOnce.complete();
    }

    /// Invalidates the translations of all second stages on all CPUs: those of servers, on a CPU that has loaded a client's.
    /// A client's reset does this once for some 64 blocks.
    pub fn invalidate_all(&self) {
        // SAFETY: TLBI drops cached translations of guests only, none that Stile uses; the next access walks the tables again.
        unsafe { core::arch::asm!("dsb ishst", "tlbi alle1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
    }

    /// Maps a BAR of an assigned PCI function.
    ///
    /// # Errors
    /// Memory is insufficient, or something is mapped there.
    pub fn map_device(&self, gpa: u64, pa: u64, size: u64) -> Result<(), Error> {
        self.table.lock().map(&mut { self.arena }, device(gpa, pa, size))?;
        dsb_ish();
        Ok(())
    }

    /// Unmaps a BAR. Frees tables as well: otherwise a guest that moves a BAR around would accumulate them.
    pub fn unmap_device(&self, gpa: u64, size: u64) {
        let done = self.table.lock().unmap(&mut { self.arena }, &mut AtOnce, gpa, size);
        debug_assert!(done.is_ok(), "what was mapped as a whole needs no memory to be unmapped");
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
        dsb_ish();
    }

    /// Reserves tables for the pages with events of a new server's devices, also of those of clients to come.
    ///
    /// # Errors
    /// Memory is insufficient.
    pub fn reserve_events(&self) -> Result<(), &'static str> {
        let all = Piece { gpa: map::EVENTS_BASE, pa: 0, size: map::EVENTS_SIZE };
        let reserved = self.table.lock().reserve(&mut { self.arena }, events(&all));
        reserved.map_err(|_| "there is no memory for the tables of a VM's served devices")
    }

    /// Maps the page with the events of a device that the VM serves.
    pub fn map_events(&self, page: &Piece) {
        let done = self.table.lock().map(&mut { self.arena }, events(page));
        debug_assert!(done.is_ok(), "the tables were made when the VM was");
        dsb_ish();
    }

    /// Maps the flash for reading, or unmaps it, on the CPU of one of the VM's vCPUs.
    pub fn show_flash(&self, flash: &Piece, readable: bool) {
        let mut table = self.table.lock();
        let done = match readable {
            true => table.map(&mut { self.arena }, read_only(flash)),
            false => table.vacate(&mut { self.arena }, &mut AtOnce, map::FLASH_BASE, map::FLASH_SIZE).map(|_| ()),
        };
        debug_assert!(done.is_ok(), "the tables were made when the VM was");
        dsb_ish();
    }

    /// Whether the root has an entry for an IPA.
    pub fn has_table_at(&self, ipa: u64) -> bool {
        let index = (ipa / Level::L1.size()) as usize;
        index < ENTRIES && TableFrames.read(self.root, index).is_ok_and(|entry| entry != 0)
    }

    /// Translates a guest-physical address in RAM, without the lock.
    pub fn translate(&self, address: u64) -> Option<HostTranslation> {
        let format = Stage2 { forced_write_back: false };
        PageTable::new(format, second_stage::geometry(), self.root).ok()?.translate(&TableFrames, address).ok()
    }

    /// Whether an address is mapped read-only.
    pub fn is_read_only(&self, address: u64) -> bool {
        self.table.lock().translate(&TableFrames, address).is_ok_and(|found| !found.attributes.permissions.write)
    }
}

/// Does nothing: the caller invalidates, once for several parts.
struct Deferred;

impl Maintenance for Deferred {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}
    fn complete(&mut self) {}
}

/// Invalidates the current VM's second stage, and the first-stage entries that depend on it.
struct AtOnce;

impl Maintenance for AtOnce {
    fn invalidate(&mut self, _: Invalidation) {}
    fn invalidate_all(&mut self) {}

    fn complete(&mut self) {
        // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks
        // its tables again.
        unsafe { core::arch::asm!("dsb ishst", "tlbi vmalls12e1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
    }
}

/// Invalidates on all CPUs when a block is divided (break-before-make), and nothing when a page gets a permission: a CPU with
/// the page's old entry faults once more, and invalidates it then ([`invalidate_page`]).
struct Division;

impl Maintenance for Division {
    fn invalidate(&mut self, invalidation: Invalidation) {
        if invalidation.level != Level::L3 {
            AtOnce.complete();
        }
    }

    fn invalidate_all(&mut self) {
        AtOnce.complete();
    }

    fn complete(&mut self) {}
}

/// Invalidates this CPU's translations by a page of the current VM's second stage, and the first-stage entries that depend on
/// it, whose virtual addresses are unknown (the manual, "TLB maintenance instructions": by IPA, then all of stage 1).
fn invalidate_page(ipa: u64) {
    // SAFETY: TLBI drops cached translations of EL1 only, none that Stile uses; the guest's next access walks its tables
    // again.
    unsafe {
        core::arch::asm!("dsb ishst", "tlbi ipas2e1, {}", "dsb nsh", "tlbi vmalle1", "dsb nsh", "isb", in(reg) ipa >> 12, options(nostack, preserves_flags));
    }
}
