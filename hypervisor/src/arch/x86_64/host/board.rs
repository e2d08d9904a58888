//! The board, as described by boot loader (Multiboot) and firmware (ACPI).

use heapless::Vec;
use stile_firmware::acpi::Tables;
use stile_firmware::{Memory, multiboot};

use super::mmu;
use crate::address_space::{self, Span};

/// Memory below belongs to firmware and the trampoline; Stile allocates none of it.
pub const LOW: u64 = 1 << 20;

/// Description of the board.
pub struct Board {
    /// RAM.
    pub ram: Vec<Span, 32>,
    /// CPUs, interrupt controllers, and the power-off register.
    pub tables: Tables,
}

/// Physical memory that the boot tables map.
struct Mapped;

impl Memory for Mapped {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let end = address.checked_add(len as u64)?;
        if end > mmu::first_mapped() {
            return None;
        }
        // SAFETY: the boot tables map it; firmware and loader no longer modify it, and Stile has written only its
        // image.
        Some(unsafe { core::slice::from_raw_parts(address_space::physical(address), len) })
    }
}

impl Board {
    /// Reads the loader's and firmware's tables, while the boot tables are in use.
    ///
    /// # Errors
    /// A description of what is missing.
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
