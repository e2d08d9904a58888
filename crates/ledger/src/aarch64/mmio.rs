//! Accesses to device registers: a read row and a write row per register or array of registers.
//!
//! The functions take the offset in the region and execute few instructions and at most one table lookup,
//! without bounds checks: the index is masked to the table's size.

use crate::RowId;
use crate::aarch64::sysreg;
use crate::catalogue::{Block, named_rows};

/// Numbers and names registers, or arrays of them, in the given order.
macro_rules! registers {
    ($names:ident, $kind:ident { $($variant:ident = $name:literal,)+ }) => {
        enum $kind { $($variant),+ }
        pub(super) const $names: &[&str] = &[$($name),+];
    };
}

registers! { GICD_NAMES, Gicd {
    Other = "other",
    Ctlr = "CTLR",
    Typer = "TYPER",
    Iidr = "IIDR",
    Typer2 = "TYPER2",
    Statusr = "STATUSR",
    Setspi = "SETSPI",
    Igroupr = "IGROUPR",
    Isenabler = "ISENABLER",
    Icenabler = "ICENABLER",
    Ispendr = "ISPENDR",
    Icpendr = "ICPENDR",
    Isactiver = "ISACTIVER",
    Icactiver = "ICACTIVER",
    Ipriorityr = "IPRIORITYR",
    Itargetsr = "ITARGETSR",
    Icfgr = "ICFGR",
    Igrpmodr = "IGRPMODR",
    Nsacr = "NSACR",
    Sgir = "SGIR",
    Irouter = "IROUTER",
    Id = "ID",
} }

registers! { GICR_NAMES, Gicr {
    Other = "other",
    Ctlr = "CTLR",
    Iidr = "IIDR",
    Typer = "TYPER",
    Statusr = "STATUSR",
    Waker = "WAKER",
    Lpi = "LPI",
    Propbaser = "PROPBASER",
    Pendbaser = "PENDBASER",
    Igroupr = "IGROUPR0",
    Isenabler = "ISENABLER0",
    Icenabler = "ICENABLER0",
    Ispendr = "ISPENDR0",
    Icpendr = "ICPENDR0",
    Isactiver = "ISACTIVER0",
    Icactiver = "ICACTIVER0",
    Ipriorityr = "IPRIORITYR",
    Icfgr = "ICFGR",
    Igrpmodr = "IGRPMODR0",
    Nsacr = "NSACR",
    Id = "ID",
} }

/// The PL011's registers by word, offsets 0 to 0x48; the last name is for all others.
pub(super) const PL011_NAMES: &[&str] = &[
    "DR", "RSR", "0x08", "0x0c", "0x10", "0x14", "FR", "0x1c", "ILPR", "IBRD", "FBRD", "LCR_H", "CR", "IFLS", "IMSC", "RIS", "MIS", "ICR",
    "DMACR", "other",
];

/// The PL031's registers by word, offsets 0 to 0x1c; the last name is for all others.
pub(super) const PL031_NAMES: &[&str] = &["DR", "MR", "LR", "CR", "IMSC", "RIS", "MIS", "ICR", "other"];

pub(super) const GICD: Block = sysreg::HOT.then(2 * GICD_NAMES.len());
pub(super) const GICR: Block = GICD.then(2 * GICR_NAMES.len());
pub(super) const PL011: Block = GICR.then(2 * PL011_NAMES.len());
pub(super) const PL031: Block = PL011.then(2 * PL031_NAMES.len());

named_rows! {
    /// MMIO exits not attributed to a device.
    MMIO_MISC MMIO_MISC_NAMES = Some(PL031);
    /// The access was decoded from the instruction, because it has no valid syndrome.
    MMIO_DECODE = "decoded",
    /// Configuration space of PCI functions.
    MMIO_PCI_CONFIG = "PCI configuration",
    /// BARs of PCI functions, where they are not mapped: MSI-X tables.
    MMIO_PCI_MEMORY = "PCI memory",
    /// The frame that turns messages of served devices into interrupts.
    MMIO_MSI_FRAME = "MSI frame",
    /// The flash with a firmware's variables: commands, and loads that follow them.
    MMIO_FLASH = "flash",
    /// A virtio device that another VM serves: registers other than QueueNotify.
    MMIO_VIRTIO = "virtio",
    /// QueueNotify of such a device: a kick of the server.
    MMIO_VIRTIO_KICK = "kick of a server",
    /// A device that the VM serves: registers.
    MMIO_SERVER = "served device",
    /// A completion that the VM signals to a client.
    MMIO_SERVER_COMPLETION = "completion for a client",
    /// The second page of a GICv2's CPU interface: GICC_DIR.
    MMIO_CPU_INTERFACE = "GICC_DIR",
    /// The ITS: commands and its other registers.
    MMIO_ITS = "ITS",
}

/// A table of registers by offset, in units of `1 << shift` bytes. Offsets outside all ranges map to register
/// 0, "other". A range is its first offset, its exclusive end, and the register.
const fn table(shift: u32, ranges: &[(usize, usize, u8)]) -> [u8; 32] {
    let mut table = [0; 32];
    let mut i = 0;
    while i < ranges.len() {
        let (mut at, end, register) = ranges[i];
        while at < end {
            table[at >> shift] = register;
            at += 1 << shift;
        }
        i += 1;
    }
    table
}

/// Words of the distributor's first 128 bytes ("The GIC Distributor register map" in the GIC
/// architecture specification).
const GICD_WORDS: [u8; 32] = table(
    2,
    &[
        (0x00, 0x04, Gicd::Ctlr as u8),
        (0x04, 0x08, Gicd::Typer as u8),
        (0x08, 0x0c, Gicd::Iidr as u8),
        (0x0c, 0x10, Gicd::Typer2 as u8),
        (0x10, 0x14, Gicd::Statusr as u8),
        (0x40, 0x5c, Gicd::Setspi as u8),
    ],
);

/// The distributor's first 4 KiB in units of 128 bytes: one unit for each array of 32 words.
const GICD_ARRAYS: [u8; 32] = table(
    7,
    &[
        (0x080, 0x100, Gicd::Igroupr as u8),
        (0x100, 0x180, Gicd::Isenabler as u8),
        (0x180, 0x200, Gicd::Icenabler as u8),
        (0x200, 0x280, Gicd::Ispendr as u8),
        (0x280, 0x300, Gicd::Icpendr as u8),
        (0x300, 0x380, Gicd::Isactiver as u8),
        (0x380, 0x400, Gicd::Icactiver as u8),
        (0x400, 0x800, Gicd::Ipriorityr as u8),
        (0x800, 0xc00, Gicd::Itargetsr as u8),
        (0xc00, 0xd00, Gicd::Icfgr as u8),
        (0xd00, 0xd80, Gicd::Igrpmodr as u8),
        (0xe00, 0xf00, Gicd::Nsacr as u8),
        (0xf00, 0xf80, Gicd::Sgir as u8),
    ],
);

/// Words of a redistributor's first 128 bytes ("The GIC Redistributor register map").
const GICR_WORDS: [u8; 32] = table(
    2,
    &[
        (0x00, 0x04, Gicr::Ctlr as u8),
        (0x04, 0x08, Gicr::Iidr as u8),
        (0x08, 0x10, Gicr::Typer as u8),
        (0x10, 0x14, Gicr::Statusr as u8),
        (0x14, 0x18, Gicr::Waker as u8),
        (0x40, 0x50, Gicr::Lpi as u8),
        (0x70, 0x78, Gicr::Propbaser as u8),
        (0x78, 0x80, Gicr::Pendbaser as u8),
    ],
);

/// The SGI and PPI frame of a redistributor, its first 4 KiB in units of 128 bytes.
const GICR_ARRAYS: [u8; 32] = table(
    7,
    &[
        (0x080, 0x100, Gicr::Igroupr as u8),
        (0x100, 0x180, Gicr::Isenabler as u8),
        (0x180, 0x200, Gicr::Icenabler as u8),
        (0x200, 0x280, Gicr::Ispendr as u8),
        (0x280, 0x300, Gicr::Icpendr as u8),
        (0x300, 0x380, Gicr::Isactiver as u8),
        (0x380, 0x400, Gicr::Icactiver as u8),
        (0x400, 0x480, Gicr::Ipriorityr as u8),
        (0xc00, 0xc80, Gicr::Icfgr as u8),
        (0xd00, 0xd80, Gicr::Igrpmodr as u8),
        (0xe00, 0xe80, Gicr::Nsacr as u8),
    ],
);

/// The identification registers of a 64 KiB frame start here.
const ID_REGISTERS: u32 = 0xffd0;

/// The row of an access to the distributor, by its offset from the region's start.
#[inline]
pub const fn gicd(offset: u32, write: bool) -> RowId {
    let register = match offset {
        0..0x80 => GICD_WORDS[(offset as usize >> 2) & 31],
        0x80..0x1000 => GICD_ARRAYS[(offset as usize >> 7) & 31],
        // 64-bit registers, the one of SPI n at 0x6000 + 8 n.
        0x6000..0x8000 => Gicd::Irouter as u8,
        ID_REGISTERS.. => Gicd::Id as u8,
        _ => Gicd::Other as u8,
    };
    GICD.access(register as usize, write)
}

/// The row of an access to a redistributor, by its offset from that redistributor's start: the
/// first 64 KiB are frame RD_base, the second SGI_base.
#[inline]
pub const fn gicr(offset: u32, write: bool) -> RowId {
    const SGI_FRAME: u32 = 0x1_0000;

    let register = match offset {
        0..0x80 => GICR_WORDS[(offset as usize >> 2) & 31],
        // GICR_INVLPIR, GICR_INVALLR and GICR_SYNCR.
        0xa0..0xc8 => Gicr::Lpi as u8,
        SGI_FRAME..0x1_1000 => GICR_ARRAYS[(offset as usize >> 7) & 31],
        ID_REGISTERS..SGI_FRAME => Gicr::Id as u8,
        _ => Gicr::Other as u8,
    };
    GICR.access(register as usize, write)
}

/// The row of an access to the PL011, by its offset from the region's start.
#[inline]
pub const fn pl011(offset: u32, write: bool) -> RowId {
    PL011.access(word(offset, PL011_NAMES.len() - 1), write)
}

/// The row of an access to the PL031, by its offset from the region's start.
#[inline]
pub const fn pl031(offset: u32, write: bool) -> RowId {
    PL031.access(word(offset, PL031_NAMES.len() - 1), write)
}

/// The index of the word at `offset`, or `rest` if it lies at or above that.
#[inline]
const fn word(offset: u32, rest: usize) -> usize {
    let word = offset as usize >> 2;
    if word < rest { word } else { rest }
}
