//! Interrupts of a function, as the IOMMU remaps them: its messages name entries of a table, and cause nothing else.

use core::sync::atomic::{AtomicU32, Ordering};

use stile_amd_iommu::{MESSAGES, RemappingEntry, RemappingTable};
use stile_pci::Address;

use crate::address_space;
use crate::arch::x86_64::host::iommu;
use crate::arena::Arena;

/// The interrupt remapping table of a function.
pub struct Messages {
    function: Address,
    entries: &'static [AtomicU32; MESSAGES],
}

impl Messages {
    /// The table of a function, which sends no interrupts.
    ///
    /// # Errors
    /// A description: no memory is left.
    pub fn new(function: Address, arena: &'static Arena) -> Result<Messages, &'static str> {
        // SAFETY: all-zero is valid: the table consists of integers.
        let entries: &'static [AtomicU32; MESSAGES] = unsafe { arena.allocate::<[AtomicU32; MESSAGES]>()?.assume_init_ref() };
        entries.iter().for_each(|entry| entry.store(RemappingEntry::BLOCKED.0, Ordering::Relaxed));
        Ok(Messages { function, entries })
    }

    /// The function.
    pub fn function(&self) -> Address {
        self.function
    }

    /// The table.
    pub fn table(&self) -> RemappingTable {
        RemappingTable { address: address_space::to_physical(self.entries) }
    }

    /// Sets the vector and the APIC ID of the CPU that entry `index` leads to, or drops its messages (`None`). On return no message uses
    /// the former entry.
    ///
    /// # Errors
    /// The IOMMU fails, or can't interrupt a CPU with this APIC ID; the entry is blocked then.
    pub fn set(&self, index: usize, target: Option<(u8, u32)>) -> Result<(), &'static str> {
        let wanted = match target {
            Some((vector, apic)) => RemappingEntry::fixed(vector, apic),
            None => Some(RemappingEntry::BLOCKED),
        };
        let RemappingEntry(entry) = wanted.unwrap_or(RemappingEntry::BLOCKED);
        self.entries[index % MESSAGES].store(entry, Ordering::Release);
        // Even if the entry is unchanged: another CPU may have stored it, and not yet have invalidated the former one.
        iommu::invalidate_interrupts(self.function)?;
        wanted.map(|_| ()).ok_or("the IOMMU can't interrupt a CPU whose APIC ID is above 254")
    }
}
