//! The board, as described by boot loader (Multiboot) and firmware (ACPI), or by UEFI firmware alone.

use heapless::Vec;
use stile_firmware::acpi::Tables;
use stile_firmware::configuration::BootMedium;
use stile_firmware::frame_buffer::FrameBuffer;
use stile_firmware::multiboot2::{self, Information};
use stile_firmware::{Memory, e820, multiboot, ram};
use stile_paging::PAGE_SIZE;

use super::mmu;
use crate::address_space::{self, Span};
use crate::once::Once;

static BOARD: Once<&'static Board> = Once::new();

/// Publishes the board.
pub fn publish(board: &'static Board) {
    BOARD.set(board);
}

/// Returns the board.
pub fn get() -> &'static Board {
    BOARD.get()
}

/// Memory below belongs to firmware and the trampoline; Stile allocates none of it.
pub const LOW: u64 = 1 << 20;

/// The page of the trampoline after a boot by Multiboot, if it is free memory: a BIOS leaves it free after loading the boot sector.
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
    /// The boot medium's files, if UEFI firmware started Stile.
    pub medium: Option<BootMedium<'static>>,
}

/// Physical memory that the boot tables map, without the image.
#[derive(Clone, Copy)]
struct Mapped;

impl Memory for Mapped {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let (end, image) = (address.checked_add(len as u64)?, mmu::image());
        if end > mmu::first_mapped() || (image.start < end && address < image.end) {
            return None;
        }
        // SAFETY: the boot tables map it; firmware and loader no longer modify it, and Stile has written only its
        // image.
        Some(unsafe { core::slice::from_raw_parts(address_space::physical(address), len) })
    }
}

impl Board {
    /// Whether no part of a device's registers, which firmware's tables name, is in RAM.
    pub fn is_device(&self, registers: &Span) -> bool {
        !self.ram.iter().any(|ram| ram.start < registers.end && registers.start < ram.end)
    }

    /// Reads the loader's and firmware's tables, while the boot tables are in use.
    ///
    /// # Errors
    /// A description of what is missing.
    pub fn new(magic: u32, info: u64) -> Result<Board, &'static str> {
        let (ram, tables, frame_buffer) = match magic {
            multiboot::MAGIC => {
                let entries = multiboot::entries(&Mapped, info)?;
                let memory = e820::within(Mapped, entries.clone());
                (ram(e820::free(entries)), Tables::read(&memory)?, None)
            }
            multiboot2::MAGIC => {
                let information = Information::read(&Mapped, info)?;
                let entries = information.entries()?;
                let memory = e820::within(Mapped, entries.clone());
                // UEFI firmware leaves the root pointer where only the loader finds it.
                let tables = information.rsdp().map_or_else(|| Tables::read(&memory), |rsdp| Tables::read_by(&memory, rsdp))?;
                (ram(e820::free(entries)), tables, information.frame_buffer())
            }
            _ => return Err("it was not started by UEFI firmware or a Multiboot loader, such as GRUB"),
        };
        let trampoline = trampoline(&ram).ok_or("there is no memory below 1 MiB, where other CPUs start")?;
        Ok(Board { frame_buffer: frame_buffer.filter(|buffer| is_apart(buffer, &ram)), ram, tables, trampoline, medium: None })
    }
}

/// RAM by a memory map, as far as the boot tables map it.
pub fn ram(entries: impl Iterator<Item = (Span, bool)> + Clone) -> Vec<Span, MOST_RANGES> {
    ram::ram(entries, mmu::first_mapped())
}

/// Whether no part of a frame buffer is RAM.
pub fn is_apart(buffer: &FrameBuffer, ram: &[Span]) -> bool {
    !ram.iter().any(|ram| buffer.address < ram.end && ram.start < buffer.address + buffer.len())
}

/// A page of RAM below 1 MiB: the usual one, or else the last one in the first range that has any. Not the first page, which has a BIOS's
/// data.
fn trampoline(ram: &[Span]) -> Option<u64> {
    let last_of = |ram: &Span| ram.end.min(LOW).checked_sub(PAGE_SIZE).filter(|&page| page >= ram.start.max(PAGE_SIZE));
    let is_usual = |ram: &Span| ram.start <= TRAMPOLINE && TRAMPOLINE + PAGE_SIZE <= ram.end;
    if ram.iter().any(is_usual) { Some(TRAMPOLINE) } else { ram.iter().find_map(last_of) }
}
