//! Stile's own address space.
//!
//! | from | what | how |
//! | --- | --- | --- |
//! | [`Arch::PHYSMAP`] | memory, at its physical address above this; not the image | read and write; the blob: read |
//! | [`Arch::DEVICES`] | devices that Stile drives, at their physical address above this | read and write |
//! | [`Arch::STACKS`] | each CPU's stack and block, with an unmapped page under it | read and write |
//! | where the linker put the image | code; constants; data | execute; read; read and write |
//! | beyond the image | the pages of the schedule that are in use | read and write |
//!
//! Nothing is both writable and executable but the memory that firmware's runtime services use, in tables of their own
//! ([`with_identity`]), and nothing is mapped twice except for the mappings that a back end's
//! `mmu.rs` names.

use core::ops::Range;

use stile_lock::TicketLock;
use stile_paging::PAGE_SIZE;
use stile_paging::table::{Attributes, ENTRIES, Error, Foreign, Level, Mapping, MemoryType, PageTable, TableMemory, TableRead};

use crate::arch::contract::Layout;
use crate::arch::{Arch, Format, Permissions, Tables};
use crate::memory::TableFrames;
use crate::nodes::Near;
use crate::{direct_map, memory};

const NO_TABLES: &str = "there is no memory left for Stile's own tables: give VMs less";

/// A run of addresses.
pub type Span = Range<u64>;

/// Address bits that tables translate; the bits above repeat the highest of them, or are zero.
const TRANSLATED: u64 = (1 << 48) - 1;

// From the linker script: each back end's image has the same parts in the same order.
unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __boot_stack_guard: u8;
    static __image_end: u8;
}

/// Address of a linker-script symbol.
macro_rules! symbol {
    ($name:ident) => {
        &raw const $name as u64
    };
}

/// The tables and their location.
pub struct AddressSpace {
    table: PageTable<Format>,
    memory: Tables,
    /// Physical extent of the image.
    image: Span,
}

static ADDRESS_SPACE: TicketLock<Option<AddressSpace>> = TicketLock::new(None);

/// Start of the image.
pub fn image_start() -> u64 {
    symbol!(__image_start)
}

/// Physical extent of Stile without the blob, for an image that starts at `start`.
pub fn image_at(start: u64) -> Span {
    start..start + (symbol!(__image_end) - symbol!(__image_start))
}

/// Returns the location of the blob behind the image, if there is one: its header has the length. Valid only while
/// the boot tables are in use.
pub fn blob(ram: &[Span], image: &Span) -> Span {
    let start = image.end;
    let end = ram.iter().find(|ram| ram.contains(&image.start)).map_or(start, |ram| ram.end.max(start));
    // SAFETY: boot.S maps the page after the image, a header is shorter than a page, and nothing writes there.
    let header = unsafe { core::slice::from_raw_parts(symbol!(__image_end) as *const u8, stile_blob::HEADER_LEN) };
    let length = stile_blob::Header::parse(header).map_or(0, |header| header.total_len);
    start..(start + length.min(end - start)).next_multiple_of(PAGE_SIZE).min(end)
}

const _: () = assert!(stile_blob::HEADER_LEN as u64 <= PAGE_SIZE);

impl AddressSpace {
    /// Maps the parts of the image, and `ram`, in empty tables. `image` and `blob` are physical addresses.
    pub fn new(table: PageTable<Format>, memory: Tables, ram: &[Span], image: &Span, blob: &Span) -> AddressSpace {
        let mut space = AddressSpace { table, memory, image: image.clone() };
        let parts = [
            (symbol!(__image_start)..symbol!(__text_end), Permissions::CODE),
            (symbol!(__text_end)..symbol!(__rodata_end), Permissions::READ),
            (symbol!(__rodata_end)..symbol!(__boot_stack_guard), Permissions::READ_WRITE),
            (symbol!(__boot_stack_guard) + PAGE_SIZE..symbol!(__image_end), Permissions::READ_WRITE),
        ];
        for (part, permissions) in parts {
            space.map(part.start, space.physical_of_image(part.start), part.end - part.start, MemoryType::Normal, permissions);
        }
        for ram in ram {
            direct_map::runs(ram, image, blob, |run, writable| {
                let permissions = if writable { Permissions::READ_WRITE } else { Permissions::READ };
                space.map(Arch::PHYSMAP + run.start, run.start, run.end - run.start, MemoryType::Normal, permissions);
            });
        }
        space
    }

    /// Maps `size` bytes.
    ///
    /// # Panics
    /// If the mapping fails: Stile cannot start without it.
    pub fn map(&mut self, address: u64, output: u64, size: u64, memory: MemoryType, permissions: Permissions) {
        if let Err(error) = self.try_map(address, output, size, memory, permissions) {
            panic!("Stile can't map {output:#x} at {address:#x}, {size:#x} bytes: {error:?}");
        }
    }

    fn try_map(&mut self, address: u64, output: u64, size: u64, memory: MemoryType, permissions: Permissions) -> Result<(), Error> {
        let mapping = Mapping { address: address & TRANSLATED, output, size, attributes: Attributes { memory, permissions } };
        self.table.map(&mut self.memory, mapping)?;
        Arch::complete_map();
        Ok(())
    }

    /// Maps pages of devices. None of them may be mapped yet.
    fn map_device(&mut self, pages: Span) {
        if !pages.is_empty() {
            self.map(Arch::DEVICES + pages.start, pages.start, pages.end - pages.start, MemoryType::Device, Permissions::READ_WRITE);
        }
    }

    /// Whether anything is mapped at an address.
    fn is_mapped(&self, address: u64) -> bool {
        self.table.translate(&self.memory, address & TRANSLATED).is_ok()
    }

    fn physical_of_image(&self, address: u64) -> u64 {
        self.image.start + (address - symbol!(__image_start))
    }

    /// Publishes the tables and returns the physical address of their root, which the caller loads.
    pub fn install(self) -> u64 {
        let root = self.table.root();
        *ADDRESS_SPACE.lock() = Some(self);
        root
    }
}

fn with<T>(work: impl FnOnce(&mut AddressSpace) -> T) -> T {
    work(ADDRESS_SPACE.lock().as_mut().expect("boot makes it before it is asked for"))
}

/// Root of the tables, for a secondary CPU.
pub fn root() -> u64 {
    with(|space| space.table.root())
}

/// Physical address of an object in the image.
#[allow(dead_code, reason = "not every architecture asks")]
pub fn image_to_physical(address: u64) -> u64 {
    with(|space| space.physical_of_image(address))
}

/// Maps a device's registers where they are not mapped yet, and returns their virtual address.
pub fn device(registers: Span) -> usize {
    let start = registers.start & !(PAGE_SIZE - 1);
    let end = registers.end.next_multiple_of(PAGE_SIZE);
    with(|space| {
        let is_mapped = |space: &AddressSpace, page: u64| space.is_mapped(Arch::DEVICES + page);
        if is_mapped(space, start) && is_mapped(space, end - PAGE_SIZE) {
            return;
        }
        // Devices may share a page, or overlap if firmware's tables are wrong: map each run of unmapped pages.
        let mut from = start;
        for page in (start..end).step_by(PAGE_SIZE as usize) {
            if is_mapped(space, page) {
                space.map_device(from..page);
                from = page + PAGE_SIZE;
            }
        }
        space.map_device(from..end);
    });
    (Arch::DEVICES + registers.start) as usize
}

/// Maps `memory`, [`crate::stacks::SIZE`] bytes, as a CPU's stack and block, and returns the address of its upper end.
pub fn stack(cpu: usize, memory: u64) -> u64 {
    let Range { start, end } = Arch::STACKS.of_cpu(cpu);
    with(|space| space.map(start, memory, end - start, MemoryType::Normal, Permissions::READ_WRITE));
    end
}

/// Allocates the tables to map any page of some addresses.
///
/// # Errors
/// A description: no memory is left.
pub fn reserve_pages(address: u64, size: u64) -> Result<(), &'static str> {
    let attributes = Attributes { memory: MemoryType::Normal, permissions: Permissions::READ_WRITE };
    // No block begins at this output, so that there are tables of pages.
    let mapping = Mapping { address: address & TRANSLATED, output: PAGE_SIZE, size, attributes };
    with(|space| space.table.reserve(&mut space.memory, mapping)).map_err(|_| NO_TABLES)
}

/// Maps a page of zeros at `address`, in memory `near` if possible, unless a page is mapped there. Returns whether none was.
///
/// # Errors
/// A description: no memory is left.
pub fn add_page(address: u64, near: &Near) -> Result<bool, &'static str> {
    with(|space| {
        if space.is_mapped(address) {
            return Ok(false);
        }
        let page = memory::allocate_pages_near(PAGE_SIZE, near)?;
        let added = space.try_map(address, page, PAGE_SIZE, MemoryType::Normal, Permissions::READ_WRITE);
        added.map(|()| true).map_err(|_| {
            memory::free(page..page + PAGE_SIZE);
            NO_TABLES
        })
    })
}

/// Makes tables under which UEFI firmware's runtime services are called: Stile's own mappings from the direct map on, and below them
/// `memory` with all accesses, and `devices` for reads and writes, at their physical addresses. Returns the physical address of the root.
///
/// # Errors
/// A description: no memory is left, or the addresses overlap, or are Stile's.
pub fn with_identity(memory: &[Span], devices: &[Span]) -> Result<u64, &'static str> {
    let root = crate::memory::allocate_pages(PAGE_SIZE)?;
    let own = ((Arch::PHYSMAP & TRANSLATED) >> Level::L0.shift()) as usize;
    with(|space| {
        for index in own..ENTRIES {
            let Ok(entry) = space.memory.read(space.table.root(), index);
            TableFrames.write(root, index, entry);
        }
        let mut table = PageTable::new(Foreign(*space.table.format()), space.table.geometry(), root).map_err(|_| NO_TABLES)?;
        let kinds = [
            (memory, Attributes { memory: MemoryType::Normal, permissions: Permissions::ALL }),
            // Instructions may be fetched speculatively from executable pages, and reads of a device may have effects (Arm ARM, Device
            // memory).
            (devices, Attributes { memory: MemoryType::Device, permissions: Permissions::READ_WRITE }),
        ];
        for (spans, attributes) in kinds {
            for span in spans {
                if span.end > Arch::PHYSMAP & TRANSLATED {
                    return Err("firmware's addresses are Stile's");
                }
                let mapping = Mapping { address: span.start, output: span.start, size: span.end - span.start, attributes };
                table.map(&mut TableFrames, mapping).map_err(|_| "firmware's addresses can't be mapped")?;
            }
        }
        Arch::complete_map();
        Ok(root)
    })
}

/// Address of physical memory in the direct map.
#[inline]
pub fn physical(address: u64) -> *mut u8 {
    (Arch::PHYSMAP + address) as *mut u8
}

/// Physical address of an object in the direct map, such as one that [`crate::memory::allocate`] returned.
#[allow(dead_code, reason = "not every architecture asks")]
pub fn to_physical<T>(place: &'static T) -> u64 {
    &raw const *place as u64 - Arch::PHYSMAP
}

/// Start of Stile's code: the beginning of the image.
pub fn code() -> Span {
    symbol!(__image_start)..symbol!(__text_end)
}

/// The mapped part of the CPU stack that contains an address.
pub fn stack_of(address: u64) -> Option<Span> {
    let boot = symbol!(__boot_stack_guard) + PAGE_SIZE..symbol!(__image_end);
    if boot.contains(&address) { Some(boot) } else { Arch::STACKS.around(address) }
}
