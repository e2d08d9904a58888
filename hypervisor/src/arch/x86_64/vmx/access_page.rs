//! The APIC-access page of a VM.

use stile_board::pc;
use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Attributes, Ept, EptPermissions, Mapping, MemoryType, PageTable, TableMemory, TableRead};

use crate::arena::Arena;
use crate::memory::TableFrames;

/// The APIC-access page of a VM in its second stage, by which the processor recognizes accesses ("APIC-Access Page").
/// It is mapped only while all vCPUs have their APICs at the default address in xAPIC mode; otherwise accesses fault,
/// and are emulated.
pub struct AccessPage {
    /// Physical address.
    pub address: u64,
    /// Table and index of the second-stage entry, and its value.
    place: (u64, usize),
    entry: u64,
    /// Serializes changes of the mapping.
    lock: TicketLock<()>,
}

impl AccessPage {
    /// Prepares the mapping in a second stage with this root.
    ///
    /// # Errors
    /// No memory is left for tables.
    pub fn new(table: &mut PageTable<Ept>, root: u64, arena: &'static Arena) -> Result<AccessPage, &'static str> {
        let address = arena.allocate_pages(PAGE_SIZE)?;
        let attributes = Attributes { memory: MemoryType::Normal, permissions: EptPermissions::ALL };
        let mapping = Mapping { address: pc::LOCAL_APIC, output: address, size: PAGE_SIZE, attributes };
        table.map(&mut { arena }, mapping).map_err(|_| "a VM's local APICs can't be mapped: no memory for tables")?;
        // Four levels of 512 entries; a single page within 2 MiB is mapped at the last level.
        let index = |level: u32| (pc::LOCAL_APIC >> (12 + 9 * level)) as usize & 511;
        let next = |from: u64, level: u32| TableFrames.read(from, index(level)).map_or(0, |entry| entry & 0x000f_ffff_ffff_f000);
        let place = ([3, 2, 1].into_iter().fold(root, next), index(0));
        let entry = TableFrames.read(place.0, place.1).unwrap_or(0);
        Ok(AccessPage { address, place, entry, lock: TicketLock::new(()) })
    }

    /// Updates the mapping, which exists only while `all_are_there`: all APICs are at the default address. Called after a
    /// vCPU's APIC has moved, or the VM was reset.
    pub fn choose(&self, all_are_there: impl FnOnce() -> bool) {
        let _guard = self.lock.lock();
        let entry = if all_are_there() { self.entry } else { 0 };
        TableFrames.write(self.place.0, self.place.1, entry);
    }
}
