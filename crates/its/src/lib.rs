//! The GICv3 ITS (Arm GIC Architecture Specification, IHI 0069, chapter 5). The physical one: encodings of commands and of
//! the registers that place its tables, its command queue; the hypervisor has the registers and the memory. The one that a
//! VM sees: [`guest`].
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod commands;
mod direct;
pub mod guest;
mod route;
mod routing;

pub use commands::{CommandQueue, PATIENCE, QueueRegisters};
pub use direct::DirectLpis;
pub use route::{Arrival, Route};
pub use routing::{MappedEvent, Routing};

/// Bytes of a command.
pub const COMMAND_SIZE: usize = 32;

/// A command, in the format of the queue.
pub type Command = [u64; 4];

const VALID: u64 = 1 << 63;

/// MAPD: the events of a device are `1 << event_bits`, and its table of `table`, 256-byte aligned.
pub const fn map_device(device: u32, event_bits: u8, table: u64) -> Command {
    [0x08 | (device as u64) << 32, event_bits as u64 - 1, VALID | table & 0x000f_ffff_ffff_ff00, 0]
}

/// MAPC: a collection is a redistributor, named as [`Typer::target`] says.
pub const fn map_collection(collection: u16, target: u64) -> Command {
    [0x09, 0, VALID | target | collection as u64, 0]
}

/// MAPTI: an event of a device is an LPI, in a collection.
pub const fn map_event(device: u32, event: u32, lpi: u32, collection: u16) -> Command {
    [0x0a | (device as u64) << 32, event as u64 | (lpi as u64) << 32, collection as u64, 0]
}

/// MOVI: an event goes to another collection.
pub const fn move_event(device: u32, event: u32, collection: u16) -> Command {
    [0x01 | (device as u64) << 32, event as u64, collection as u64, 0]
}

/// INV: invalidates the configuration of an event's LPI.
pub const fn invalidate_event(device: u32, event: u32) -> Command {
    [0x0c | (device as u64) << 32, event as u64, 0, 0]
}

/// SYNC: the commands before it have taken effect on a redistributor.
pub const fn sync(target: u64) -> Command {
    [0x05, 0, target, 0]
}

/// INT: makes an event's LPI pending, of a vPE if the event is mapped to one.
pub const fn set_pending(device: u32, event: u32) -> Command {
    [0x03 | (device as u64) << 32, event as u64, 0, 0]
}

/// CLEAR: makes an event's LPI not pending.
pub const fn clear_pending(device: u32, event: u32) -> Command {
    [0x04 | (device as u64) << 32, event as u64, 0, 0]
}

/// DISCARD: unmaps an event, whose LPI ceases to be pending.
pub const fn discard(device: u32, event: u32) -> Command {
    [0x0f | (device as u64) << 32, event as u64, 0, 0]
}

/// VMAPP (GICv4.0): a vPE is on a redistributor, and has a virtual pending table, 64 KiB aligned, for INTIDs of `bits` bits.
pub const fn map_vpe(vpe: u16, target: u64, table: u64, bits: u8) -> Command {
    [0x29, (vpe as u64) << 32, VALID | target, table & 0x000f_ffff_ffff_0000 | (bits as u64 - 1)]
}

/// VMOVP, of an ITS with GITS_TYPER.VMOVP: a vPE, which is not resident, goes to another redistributor.
pub const fn move_vpe(vpe: u16, target: u64) -> Command {
    [0x22, (vpe as u64) << 32, target, 0]
}

/// VMAPTI: an event of a device is an LPI of a vPE. While the vPE is not resident, it makes LPI `doorbell` of the vPE's
/// redistributor pending as well.
pub const fn map_virtual_event(device: u32, event: u32, vpe: u16, lpi: u32, doorbell: u32) -> Command {
    [0x2a | (device as u64) << 32, event as u64 | (vpe as u64) << 32, lpi as u64 | (doorbell as u64) << 32, 0]
}

/// VMOVI: an event goes to another vPE, with that one's doorbell.
pub const fn move_virtual_event(device: u32, event: u32, vpe: u16, doorbell: u32) -> Command {
    const DOORBELL_VALID: u64 = 1;
    [0x21 | (device as u64) << 32, event as u64 | (vpe as u64) << 32, DOORBELL_VALID | (doorbell as u64) << 32, 0]
}

/// VSYNC: the commands before it have taken effect on a vPE.
pub const fn virtual_sync(vpe: u16) -> Command {
    [0x25, (vpe as u64) << 32, 0, 0]
}

/// GITS_TYPER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Typer(pub u64);

impl Typer {
    /// Bytes of an interrupt translation entry.
    pub const fn entry_size(self) -> u64 {
        (self.0 >> 4 & 0xf) + 1
    }

    /// Whether it has the commands of GICv4, of which VMOVP concerns no other ITS (Virtual, VMOVP).
    pub const fn is_virtual(self) -> bool {
        self.0 >> 1 & 1 != 0 && self.0 >> 37 & 1 != 0
    }

    /// Bits of a device's number.
    pub const fn device_bits(self) -> u32 {
        (self.0 >> 13 & 0x1f) as u32 + 1
    }

    /// The name of a redistributor in commands: its address, or its processor number (PTA).
    pub const fn target(self, redistributor: u64, processor: u16) -> u64 {
        if self.0 >> 19 & 1 != 0 { redistributor & 0x0007_ffff_ffff_0000 } else { (processor as u64) << 16 }
    }
}

/// The tables that a GITS_BASER register can place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Device table.
    Devices,
    /// vPE table.
    Vpes,
    /// Collection table.
    Collections,
    /// Unimplemented, or not used here.
    Other,
}

/// The table of a GITS_BASER register, and the size of its entries in bytes.
pub const fn table_of(baser: u64) -> (TableKind, u64) {
    let kind = match baser >> 56 & 7 {
        1 => TableKind::Devices,
        2 => TableKind::Vpes,
        4 => TableKind::Collections,
        _ => TableKind::Other,
    };
    (kind, (baser >> 48 & 0x1f) + 1)
}

/// Write-back, inner shareable: the attributes of all tables.
const INNER_WRITE_BACK: u64 = 0b111 << 59;
const INNER_SHAREABLE: u64 = 0b01 << 10;

/// The sizes of a table's pages, the largest first: an ITS may have only one.
pub const PAGE_SIZES: [PageSize; 3] = [PageSize::K64, PageSize::K16, PageSize::K4];

/// Page size of a table, as encoded in GITS_BASER.Page_Size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PageSize {
    K4 = 0b00,
    K16 = 0b01,
    K64 = 0b10,
}

impl PageSize {
    /// Pages in 64 KiB.
    const fn count(self) -> u64 {
        match self {
            Self::K4 => 16,
            Self::K16 => 4,
            Self::K64 => 1,
        }
    }
}

/// GITS_BASER for a flat table of 64 KiB, aligned to that, in pages of a size.
pub const fn place_table(table: u64, pages: PageSize) -> u64 {
    VALID | INNER_WRITE_BACK | INNER_SHAREABLE | (pages as u64) << 8 | table & 0x0000_ffff_ffff_0000 | (pages.count() - 1)
}

/// Reason for an ITS rejecting a table's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// Another page size; one of [`PAGE_SIZES`] may be accepted.
    PageSize,
    /// Not cache-coherent.
    Shareability,
    /// Other bits read back differently: another address or size.
    Other,
}

/// Compares a register read back with what was written into it: [`place_table`], [`place_queue`].
///
/// # Errors
/// The field that differs.
pub const fn check_place(written: u64, read: u64) -> Result<(), Misplaced> {
    /// Valid, Indirect (two levels), the address and the number of pages. (Cacheability is a hint where the shareability is kept.)
    const PLACE: u64 = VALID | 1 << 62 | 0x0000_ffff_ffff_f0ff;
    let different = written ^ read;
    if different & 0b11 << 8 != 0 {
        Err(Misplaced::PageSize)
    } else if different & 0b11 << 10 != 0 {
        Err(Misplaced::Shareability)
    } else if different & PLACE != 0 {
        Err(Misplaced::Other)
    } else {
        Ok(())
    }
}

/// GITS_CBASER for a queue of one 4 KiB page in a 64 KiB-aligned place.
pub const fn place_queue(queue: u64) -> u64 {
    VALID | INNER_WRITE_BACK | INNER_SHAREABLE | queue & 0x000f_ffff_ffff_0000
}

/// GICR_PROPBASER: LPIs have `bits` bits, and a byte each in the table, which is 4 KiB aligned.
pub const fn place_configuration(table: u64, bits: u8) -> u64 {
    0b111 << 7 | INNER_SHAREABLE | table & 0x000f_ffff_ffff_f000 | (bits as u64 - 1)
}

/// GICR_PENDBASER of a zeroed table, which is 64 KiB aligned.
pub const fn place_pending(table: u64) -> u64 {
    const ZEROED: u64 = 1 << 62;
    ZEROED | 0b111 << 7 | INNER_SHAREABLE | table & 0x000f_ffff_ffff_0000
}

/// GICR_VPROPBASER of GICv4.0: the table of [`place_configuration`].
pub const fn place_virtual_configuration(table: u64, bits: u8) -> u64 {
    place_configuration(table, bits)
}

/// GICR_VPENDBASER of GICv4.0, which makes the vPE of a virtual pending table, 64 KiB aligned, resident.
pub const fn place_virtual_pending(table: u64) -> u64 {
    VALID | 0b111 << 7 | INNER_SHAREABLE | table & 0x000f_ffff_ffff_0000
}

/// The configuration of an LPI that is enabled, with a priority that is a multiple of 4.
pub const fn enabled(priority: u8) -> u8 {
    priority & 0xfc | 1
}

/// The configuration of an LPI that is off, with such a priority.
pub const fn disabled(priority: u8) -> u8 {
    priority & 0xfc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_operands() {
        assert_eq!(map_device(0x10, 5, 0x4000_0100), [0x10_0000_0008, 4, 0x8000_0000_4000_0100, 0]);
        assert_eq!(map_collection(2, 2 << 16), [9, 0, 0x8000_0000_0002_0002, 0]);
        assert_eq!(map_event(0x10, 3, 8195, 1), [0x10_0000_000a, 8195 << 32 | 3, 1, 0]);
        assert_eq!(move_event(0x10, 3, 1), [0x10_0000_0001, 3, 1, 0]);
        assert_eq!(invalidate_event(0x10, 3), [0x10_0000_000c, 3, 0, 0]);
        assert_eq!(sync(1 << 16), [5, 0, 0x1_0000, 0]);
        assert_eq!(set_pending(0x10, 3), [0x10_0000_0003, 3, 0, 0]);
        assert_eq!(clear_pending(0x10, 3), [0x10_0000_0004, 3, 0, 0]);
        assert_eq!(discard(0x10, 3), [0x10_0000_000f, 3, 0, 0]);
    }

    #[test]
    fn commands_of_gicv4_have_their_operands() {
        assert_eq!(map_vpe(7, 2 << 16, 0x4001_0000, 14), [0x29, 7 << 32, 0x8000_0000_0002_0000, 0x4001_000d]);
        assert_eq!(move_vpe(7, 1 << 16), [0x22, 7 << 32, 1 << 16, 0]);
        assert_eq!(map_virtual_event(0x10, 3, 7, 8200, 9000), [0x10_0000_002a, 7 << 32 | 3, 9000 << 32 | 8200, 0]);
        assert_eq!(move_virtual_event(0x10, 3, 7, 9000), [0x10_0000_0021, 7 << 32 | 3, 9000 << 32 | 1, 0]);
        assert_eq!(virtual_sync(7), [0x25, 7 << 32, 0, 0]);
        assert_eq!(place_virtual_configuration(0x5_0001_0000, 14), 0x5_0001_078d);
        assert_eq!(place_virtual_pending(0x5_0001_0000), 0x8000_0005_0001_0780);
    }

    #[test]
    fn redistributors_are_named_by_number_or_address() {
        assert_eq!(Typer(0).target(0x80a_0000, 3), 3 << 16);
        assert_eq!(Typer(1 << 19).target(0x80a_0000, 3), 0x80a_0000);
        assert!(Typer(1 << 1 | 1 << 37).is_virtual() && !Typer(1 << 1).is_virtual() && !Typer(1 << 37).is_virtual());
        assert_eq!((Typer(0xb << 4).entry_size(), Typer(15 << 13).device_bits()), (12, 16));
    }

    #[test]
    fn tables_are_recognised_and_placed() {
        assert_eq!(table_of(1 << 56 | 7 << 48), (TableKind::Devices, 8));
        assert_eq!(table_of(2 << 56 | 7 << 48), (TableKind::Vpes, 8));
        assert_eq!(table_of(4 << 56 | 7 << 48), (TableKind::Collections, 8));
        assert_eq!(table_of(0).0, TableKind::Other);
        assert_eq!(place_table(0x5_0001_0000, PageSize::K64), 0xb800_0005_0001_0600);
        assert_eq!(place_table(0x5_0001_0000, PageSize::K16), 0xb800_0005_0001_0503);
        assert_eq!(place_table(0x5_0001_0000, PageSize::K4), 0xb800_0005_0001_040f);
        assert_eq!(place_queue(0x5_0001_0000), 0xb800_0005_0001_0400);
        assert_eq!(place_configuration(0x5_0001_0000, 14), 0x5_0001_078d);
        assert_eq!(place_pending(0x5_0001_0000), 0x4000_0005_0001_0780);
        assert_eq!((enabled(0x82), disabled(0x83)), (0x81, 0x80));
    }

    /// The registers of an ITS that has only some page sizes, its own type and entry size, and perhaps no coherent walks.
    fn keep(sizes: &[PageSize], coherent: bool, written: u64) -> u64 {
        const READ_ONLY: u64 = 0x7 << 56 | 0x1f << 48;
        let kept = if sizes.iter().any(|&size| size as u64 == written >> 8 & 3) { 0 } else { 3 << 8 };
        let size = if kept == 0 { 0 } else { (sizes[0] as u64) << 8 };
        let shareable = if coherent { 0 } else { 3 << 10 };
        written & !(READ_ONLY | kept | shareable) | 1 << 56 | 7 << 48 | size
    }

    #[test]
    fn a_table_is_where_the_its_has_it() {
        for only in PAGE_SIZES {
            let takes = |size: &PageSize| {
                let written = place_table(0x5_0001_0000, *size);
                check_place(written, keep(&[only], true, written))
            };
            assert_eq!(PAGE_SIZES.iter().find(|size| takes(size).is_ok()), Some(&only));
            assert!(PAGE_SIZES.iter().filter(|size| **size != only).all(|size| takes(size) == Err(Misplaced::PageSize)));
        }
        let written = place_table(0x5_0001_0000, PageSize::K64);
        assert_eq!(check_place(written, keep(&PAGE_SIZES, false, written)), Err(Misplaced::Shareability));
        assert_eq!(check_place(written, written & !VALID), Err(Misplaced::Other));
        assert_eq!(check_place(written, written | 1 << 62), Err(Misplaced::Other), "two levels");
        assert_eq!(check_place(written, written & !(1 << 34)), Err(Misplaced::Other), "another address");
    }
}
