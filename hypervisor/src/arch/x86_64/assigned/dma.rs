//! DMA address space of a VM's functions: its RAM, at its guest-physical addresses.
//!
//! The tables are the functions' own: the VM's nested page tables also map BARs, and lack permission to write where the decode cache tracks
//! writes. They do not change, because all RAM of such a VM is filled before its guest starts, and never given back.

use stile_amd_iommu::{DeviceEntry, DmaTables};
use stile_paging::PAGE_SIZE;
use stile_paging::frames::Piece;
use stile_paging::table::{
    AmdIommu, Attributes, ENTRIES, Entry, Geometry, IommuPermissions, Layout, Level, Mapping, MemoryType, PageTable, TableMemory, TableRead,
};
use stile_pci::Address;

use super::remapping::Messages;
use super::{failure, faults};
use crate::arch::x86_64::host::{iommu, mmu};
use crate::arena::Arena;
use crate::memory::TableFrames;

/// DMA address space of a VM's functions.
pub struct Dma(DmaTables);

impl Dma {
    /// Creates the address space of VM number `vm`, with these pieces of RAM.
    ///
    /// # Errors
    /// A description: no memory is left.
    pub fn new(vm: usize, pieces: &[Piece], arena: &'static Arena) -> Result<Dma, &'static str> {
        const NO_MEMORY: &str = "no memory for the tables of PCI functions";
        // Domain 0 is that of functions without an owner.
        let domain = u8::try_from(vm + 1).map_err(|_| "a VM with PCI functions must be one of the first 255")?;
        let geometry = Geometry::stage1(48, mmu::pa_range()).ok_or("the IOMMU's tables can't have 48 bits of address")?;
        let mut table = PageTable::new(AmdIommu, geometry, arena.allocate_pages(PAGE_SIZE)?).map_err(|_| NO_MEMORY)?;
        let attributes = Attributes { memory: MemoryType::Normal, permissions: IommuPermissions { write: true } };
        for piece in pieces {
            let mapping = Mapping { address: piece.gpa, output: piece.pa, size: piece.size, attributes };
            table.map(&mut { arena }, mapping).map_err(|_| NO_MEMORY)?;
        }
        report_unmapped(table.root(), table.geometry().start());
        Ok(Dma(DmaTables { domain, root: table.root() }))
    }

    /// Lets a function access the VM's memory, and send the interrupts of its remapping table.
    pub fn connect(&self, messages: &Messages) {
        failure::check(iommu::set_device(messages.function(), DeviceEntry::translated(self.0, messages.table())));
    }
}

/// Takes a function's access to memory, and its interrupts. On return none is in flight.
pub fn disconnect(function: Address) {
    failure::check(iommu::set_device(function, DeviceEntry::BLOCKED));
    faults::report_unlogged();
}

/// Fills entries that map nothing with [`AmdIommu::REPORTED`], so that QEMU's IOMMU reports requests that meet them.
fn report_unmapped(table: u64, level: Level) {
    for index in 0..ENTRIES {
        let Ok(descriptor) = TableFrames.read(table, index);
        match (<AmdIommu as stile_paging::table::Format>::Layout::entry(level, descriptor), level.next()) {
            (Entry::Invalid, _) => TableFrames.write(table, index, AmdIommu::REPORTED),
            (Entry::Table(next), Some(below)) => report_unmapped(next, below),
            _ => {}
        }
    }
}
