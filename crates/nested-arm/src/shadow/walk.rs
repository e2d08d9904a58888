//! Walk of L1's second-stage tables, equivalent to the hardware's.

use super::stage2::Stage2;
use stile_paging::table::{MemoryType, Stage2Permissions};

/// The memory of L1's VM.
pub trait GuestMemory {
    /// Reads the eight bytes at L1 physical address `address`, a multiple of 8, with one single-copy atomic
    /// little-endian access. `None` if that is not memory of the VM.
    fn read(&self, address: u64) -> Option<u64>;
}

/// The result of a walk: a page or block of L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The L1 physical address of the translated address.
    pub output: u64,
    /// log2 of the page or block size.
    pub shift: u32,
    /// The level of the entry.
    pub level: u8,
    /// The permissions that L1 grants.
    pub access: Stage2Permissions,
    /// The memory type in L1's entry.
    pub memory: MemoryType,
}

/// Reason for a missing translation or permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkFaultKind {
    /// An address in a table entry, or of the root, exceeds the physical address size.
    AddressSize,
    /// No valid entry, an address out of range, or an invalid configuration.
    Translation,
    /// The entry's access flag is 0.
    AccessFlag,
    /// The entry doesn't allow the access.
    Permission,
    /// A table is not in the VM's memory: a synchronous external abort on the walk.
    External,
}

/// A fault of L1's second stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkFault {
    /// Its kind.
    pub kind: WalkFaultKind,
    /// The level of the faulting entry, 0 to 3.
    pub level: u8,
}

impl WalkFault {
    /// The fault status code for DFSC and IFSC: Arm ARM, "ISS encoding for an exception from a Data Abort".
    pub const fn status(self) -> u8 {
        let kind = match self.kind {
            WalkFaultKind::AddressSize => 0b00_0000,
            WalkFaultKind::Translation => 0b00_0100,
            WalkFaultKind::AccessFlag => 0b00_1000,
            WalkFaultKind::Permission => 0b00_1100,
            WalkFaultKind::External => 0b01_0100,
        };
        kind | self.level & 0b11
    }
}

/// Bits of descriptors: Arm ARM, "VMSAv8-64 translation table format descriptors".
mod descriptor {
    pub const VALID: u64 = 1 << 0;
    pub const TABLE_OR_PAGE: u64 = 1 << 1;
    pub const READ: u64 = 1 << 6;
    pub const WRITE: u64 = 1 << 7;
    pub const AF: u64 = 1 << 10;
    pub const XN: u64 = 1 << 54;
    pub const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

    pub const fn mem_attr(descriptor: u64) -> u8 {
        (descriptor >> 2 & 0xf) as u8
    }
}

impl Stage2 {
    /// Translates L2's intermediate physical address `ipa`, with at most four reads for any contents of the tables.
    ///
    /// # Errors
    /// The fault to report to L1. Permissions are not checked, but reported.
    pub fn walk(&self, memory: &impl GuestMemory, ipa: u64) -> Result<Leaf, WalkFault> {
        let fault = |kind, level| Err(WalkFault { kind, level });
        if !self.is_enabled {
            return self.identity(ipa);
        }
        let Some(start) = self.start else {
            return fault(WalkFaultKind::Translation, 0);
        };
        if ipa >> self.input_bits != 0 {
            return fault(WalkFaultKind::Translation, 0);
        }
        if self.root >> self.output_bits != 0 {
            return fault(WalkFaultKind::AddressSize, 0);
        }
        let page = self.granule.shift();
        let address = descriptor::ADDRESS & !((1 << page) - 1);
        // The root has as many entries as the input size needs; tables below it fill a page.
        let mut table = self.root;
        let mut index = ipa >> self.granule.level_shift(start);
        for level in start..4 {
            let shift = self.granule.level_shift(level);
            let Some(entry) = memory.read(table + 8 * index) else {
                return fault(WalkFaultKind::External, level);
            };
            let entry = if self.is_big_endian { entry.swap_bytes() } else { entry };
            let is_large = entry & descriptor::TABLE_OR_PAGE == 0;
            let is_leaf = if is_large { self.granule.has_blocks(level) } else { level == 3 };
            if entry & descriptor::VALID == 0 || is_large && !is_leaf {
                return fault(WalkFaultKind::Translation, level);
            }
            let next = entry & address;
            if next >> self.output_bits != 0 {
                return fault(WalkFaultKind::AddressSize, level);
            }
            if is_leaf {
                if entry & descriptor::AF == 0 {
                    return fault(WalkFaultKind::AccessFlag, level);
                }
                let within = (1 << shift) - 1;
                return Ok(Leaf {
                    output: next & !within | ipa & within,
                    shift,
                    level,
                    access: Stage2Permissions {
                        read: entry & descriptor::READ != 0,
                        write: entry & descriptor::WRITE != 0,
                        execute: entry & descriptor::XN == 0,
                    },
                    memory: memory_type(descriptor::mem_attr(entry)),
                });
            }
            table = next;
            index = ipa >> (shift - self.granule.stride()) & ((1 << self.granule.stride()) - 1);
        }
        // Level 3 has no tables: the loop always returns.
        fault(WalkFaultKind::Translation, 3)
    }

    /// The result with the second stage disabled: L2's addresses are L1's.
    fn identity(&self, ipa: u64) -> Result<Leaf, WalkFault> {
        if ipa >> self.output_bits != 0 {
            return Err(WalkFault { kind: WalkFaultKind::AddressSize, level: 0 });
        }
        // Treated as the largest block that a shadow can have.
        Ok(Leaf { output: ipa, shift: 30, level: 1, access: Stage2Permissions::ALL, memory: MemoryType::Normal })
    }
}

/// Decodes MemAttr without FEAT_S2FWB: Arm ARM, "Stage 2 memory type and Cacheability attributes". The
/// nearest type that a shadow supports and that is not more cacheable.
const fn memory_type(mem_attr: u8) -> MemoryType {
    match mem_attr {
        0b0000..=0b0011 => MemoryType::Device,
        0b1111 => MemoryType::Normal,
        _ => MemoryType::NonCacheable,
    }
}
