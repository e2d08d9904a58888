//! The board, as described by boot loader (Multiboot) and firmware (ACPI), or by UEFI firmware alone.

use heapless::Vec;
use stile_firmware::acpi::Tables;
use stile_firmware::frame_buffer::FrameBuffer;
use stile_firmware::{Memory, multiboot};

use super::mmu;
use crate::address_space::{self, Span};

/// Memory below belongs to firmware and the trampoline; Stile allocates none of it.
pub const LOW: u64 = 1 << 20;

/// The page of the trampoline after a boot by Multiboot: below 1 MiB, and left free by firmware after loading the boot
/// sector.
const TRAMPOLINE: u64 = 0x8000;

/// Maximum number of ranges of RAM. EDK2's memory map has some 20.
pub const MOST_RANGES: usize = 96;

/// Description of the board.
pub struct Board {
    /// RAM that firmware does not use.
    pub ram: Vec<Span, MOST_RANGES>,
    /// CPUs, interrupt controllers, and the power-off register.
    pub tables: Tables,
    /// Start-up address of secondary CPUs: a page below 1 MiB.
    pub trampoline: u64,
    /// The firmware's screen.
    pub frame_buffer: Option<FrameBuffer>,
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
            return Err("it was not started by UEFI firmware or a Multiboot loader, such as GRUB");
        }
        let mut ram = Vec::new();
        multiboot::ram(&Mapped, info, |span| {
            let page = stile_paging::PAGE_SIZE;
            let span = span.start.next_multiple_of(page)..(span.end & !(page - 1)).min(mmu::first_mapped());
            if !span.is_empty() {
                let _ = ram.push(span);
            }
        })?;
        Ok(Board { ram, tables: Tables::read(&Mapped)?, trampoline: TRAMPOLINE, frame_buffer: None })
    }
}
