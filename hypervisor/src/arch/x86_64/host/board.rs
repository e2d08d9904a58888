//! The board, as the boot loader (Multiboot) and the firmware (ACPI) describe it.

use heapless::Vec;
use stile_firmware::acpi::Tables;
use stile_firmware::{Memory, multiboot};

use super::mmu;
use crate::address_space::{self, Span};

/// Memory below this is the firmware's and the trampoline's: Stile takes none of it.
pub const LOW: u64 = 1 << 20;

/// The board's description, as far as Stile needs it.
pub struct Board {
    /// Memory.
    pub ram: Vec<Span, 32>,
    /// CPUs, interrupt controllers, and how to turn the machine off.
    pub tables: Tables,
}

/// All that the first tables map.
struct Mapped;

impl Memory for Mapped {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let end = address.checked_add(len as u64)?;
        if end > mmu::first_mapped() {
            return None;
        }
        // SAFETY: the first tables map it; firmware and loader no longer change it, and Stile has written nothing but its image.
        Some(unsafe { core::slice::from_raw_parts(address_space::physical(address), len) })
    }
}

impl Board {
    /// Reads what loader and firmware left in memory. Only while the first tables are in use.
    ///
    /// # Errors
    /// In words: what is missing.
    pub fn new(magic: u32, info: u64) -> Result<Board, &'static str> {
        if magic != multiboot::MAGIC {
            return Err("it was not started by a Multiboot loader, such as GRUB");
        }
        let mut ram = Vec::new();
        multiboot::ram(&Mapped, info, |span| {
            let page = stile_paging::PAGE_SIZE;
            let span = span.start.next_multiple_of(page)..(span.end & !(page - 1)).min(mmu::first_mapped());
            if !span.is_empty() {
                let _ = ram.push(span);
            }
        })?;
        Ok(Board { ram, tables: Tables::read(&Mapped)? })
    }
}
