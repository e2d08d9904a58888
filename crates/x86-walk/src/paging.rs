//! The translation regime that a guest's registers configure.

use crate::entry;

/// The registers that control address translation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// The page-directory-pointer-table entries that the processor holds under PAE paging; unused otherwise.
    pub pdpte: [u64; 4],
}

/// CPUID features of the guest that affect translation.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Physical-address width, 32 to 52 bits.
    pub physical_bits: u8,
    /// 1 GiB pages.
    pub page_1g: bool,
    /// 4 MiB pages can map addresses above 4 GiB (PSE-36).
    pub pse36: bool,
}

/// The paging mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// No paging: linear addresses are physical addresses.
    Off,
    /// 32-bit paging: two levels of four-byte entries; 4 MiB pages if `pse` is set.
    Bits32 {
        /// CR4.PSE.
        pse: bool,
    },
    /// PAE paging: the processor's four PDPTEs, then two levels of eight-byte entries.
    Pae([u64; 4]),
    /// 4-level paging.
    Level4,
    /// 5-level paging.
    Level5,
}

/// A guest's translation regime, prepared for walks.
#[derive(Clone, Copy, Debug)]
pub struct Paging {
    pub(crate) tables: Tables,
    /// Physical address of the root table.
    pub(crate) root: u64,
    /// Reserved bits of eight-byte entries at every level.
    pub(crate) reserved: u64,
    pub(crate) physical: u64,
    /// The root (0 under PAE paging), with the paging mode and the fetch rules in bits 4:0.
    mode: u64,
    pub(crate) no_execute: bool,
    pub(crate) write_protect: bool,
    pub(crate) smep: bool,
    pub(crate) smap: bool,
    pub(crate) page_1g: bool,
    pub(crate) pse36: bool,
}

const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;

impl Paging {
    /// The bits of [`Paging::mode`] and [`Paging::pointer`] that are a table's address.
    pub const ROOT: u64 = entry::ADDRESS;

    /// Returns the translation regime of these registers.
    pub const fn new(registers: &Registers, features: Features) -> Self {
        let Registers { cr0, cr3, cr4, efer, pdpte } = *registers;
        let tables = if cr0 & CR0_PG == 0 {
            Tables::Off
        } else if cr4 & CR4_PAE == 0 {
            Tables::Bits32 { pse: cr4 & CR4_PSE != 0 }
        } else if efer & EFER_LMA == 0 {
            Tables::Pae(pdpte)
        } else if cr4 & CR4_LA57 == 0 {
            Tables::Level4
        } else {
            Tables::Level5
        };
        // 32-bit paging has no execute-disable bit for any value of EFER.NXE.
        let no_execute = efer & EFER_NXE != 0 && cr4 & CR4_PAE != 0;
        // Clamp to the architectural range.
        let bits = if features.physical_bits < 32 {
            32
        } else if features.physical_bits > 52 {
            52
        } else {
            features.physical_bits
        };
        let physical = (1 << bits) - 1;
        // PAE paging also reserves bits 62:52; the other modes ignore them.
        let ignored = if matches!(tables, Tables::Pae(_)) { entry::NO_EXECUTE } else { !entry::ADDRESS };
        let reserved = !physical & !ignored & !0xfff | if no_execute { 0 } else { entry::NO_EXECUTE };
        let shape = match tables {
            Tables::Off => 0,
            Tables::Bits32 { pse: false } => 1,
            Tables::Bits32 { pse: true } => 2,
            Tables::Pae(_) => 3,
            Tables::Level4 => 4,
            Tables::Level5 => 5,
        };
        let smep = cr4 & CR4_SMEP != 0;
        let paging = Self {
            tables,
            root: 0,
            reserved,
            physical,
            mode: shape | (no_execute as u64) << 3 | (smep as u64) << 4,
            no_execute,
            write_protect: cr0 & CR0_WP != 0,
            smep,
            smap: cr4 & CR4_SMAP != 0,
            page_1g: features.page_1g,
            pse36: features.pse36,
        };
        paging.with_root(cr3)
    }

    /// Returns this regime with another CR3. Under PAE paging the four PDPTEs stay unchanged.
    #[inline]
    #[must_use]
    pub const fn with_root(mut self, cr3: u64) -> Self {
        self.root = cr3 & entry::ADDRESS & self.physical;
        // Under PAE paging the PDPTEs replace CR3.
        let root = if matches!(self.tables, Tables::Pae(_)) { 0 } else { self.root };
        self.mode = self.mode & !entry::ADDRESS | root;
        self
    }

    /// The paging mode.
    pub const fn tables(&self) -> Tables {
        self.tables
    }

    /// Physical address of the root table.
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// Physical address of the entry of the root table that translates a linear address, under 4-level paging.
    pub const fn root_entry(&self, linear: u64) -> Option<u64> {
        match self.tables {
            Tables::Level4 => Some(self.root | (linear >> 39 & 0x1ff) << 3),
            _ => None,
        }
    }

    /// A key of everything that affects a fetch's walk except the tables' contents and the [`pointer`](Self::pointer). Equal keys mean
    /// equal walks for the same linear address, privilege and [`Features`]. Bits 11:8 and 63:52 are zero.
    #[inline]
    pub const fn mode(&self) -> u64 {
        self.mode
    }

    /// The table address in the PDPTE of a linear address under PAE paging; otherwise 0.
    #[inline]
    pub const fn pointer(&self, linear: u64) -> u64 {
        match self.tables {
            Tables::Pae(pointers) => pointers[(linear >> 30 & 3) as usize] & entry::ADDRESS,
            _ => 0,
        }
    }

    /// Whether `linear` is not canonical. Such an access raises #GP or #SS before any walk.
    #[inline]
    pub const fn non_canonical(&self, linear: u64) -> bool {
        let unused = match self.tables {
            Tables::Level4 => 16,
            Tables::Level5 => 7,
            _ => return false,
        };
        ((linear << unused) as i64 >> unused) as u64 != linear
    }
}
