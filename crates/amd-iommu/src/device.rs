//! Device-table entries ("Device Table Entry Format").

/// The address space of a VM's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaTables {
    /// Tag of its translations in the IOMMU. Up to 255: QEMU (10.0) reserves a bit above.
    pub domain: u8,
    /// Physical address of the root of host page tables of four levels.
    pub root: u64,
}

/// A function's interrupt remapping table of [`MESSAGES`](crate::MESSAGES) entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemappingTable {
    /// Its physical address: a multiple of 4 KiB.
    pub address: u64,
}

/// The entry of a function: four 64-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEntry(pub [u64; 4]);

/// V: the first two words are valid. Without it, requests pass untranslated.
const VALID: u64 = 1 << 0;
/// TV: the fields of the page table are valid.
const TRANSLATION_VALID: u64 = 1 << 1;
/// Mode: a page table of four levels, for addresses of 48 bits.
const FOUR_LEVELS: u64 = 4 << 9;
const READABLE: u64 = 1 << 61;
const WRITABLE: u64 = 1 << 62;
/// SA, in the second word: its page faults are not logged.
const SILENT: u64 = 1 << (98 - 64);
/// IV, in the third word: interrupt fields are valid. Without it, interrupts pass as they are.
const INTERRUPTS_VALID: u64 = 1 << 0;
/// IntTabLen: the table's length is 2 to the power of 11.
const LENGTH: u64 = 11 << (129 - 128);
/// IG: interrupts whose entry is not valid are not logged.
const IGNORE: u64 = 1 << (133 - 128);
/// IntCtl: fixed and arbitrated interrupts are remapped. 0 aborts them.
const REMAPPED: u64 = 0b10 << (188 - 128);
const TABLE: u64 = 0x000f_ffff_ffff_f000;

impl DeviceEntry {
    /// Blocks all requests and interrupts, and logs none.
    pub const BLOCKED: DeviceEntry = DeviceEntry([VALID | TRANSLATION_VALID, SILENT, INTERRUPTS_VALID | IGNORE, 0]);

    /// Blocks all requests, and passes interrupts as they are: for devices that only Stile programs, such as an I/O APIC.
    pub const INTERRUPTS_ONLY: DeviceEntry = DeviceEntry([VALID | TRANSLATION_VALID, SILENT, 0, 0]);

    /// Translates requests by tables, and remaps fixed interrupts; others are aborted: system management messages, INIT, NMI, port
    /// I/O. Page faults are logged, interrupts without a valid entry are not.
    pub const fn translated(tables: DmaTables, interrupts: RemappingTable) -> DeviceEntry {
        let memory = VALID | TRANSLATION_VALID | FOUR_LEVELS | tables.root & TABLE | READABLE | WRITABLE;
        let remapping = INTERRUPTS_VALID | LENGTH | IGNORE | interrupts.address & TABLE | REMAPPED;
        DeviceEntry([memory, tables.domain as u64, remapping, 0])
    }

    /// Tag of its translations. Entries without any have tag 0, which is no VM's.
    pub const fn domain(&self) -> u8 {
        self.0[1] as u8
    }
}
