//! Walk of L2's first stage: Arm ARM, "The AArch64 Virtual Memory System Architecture". Addresses of at most
//! 48 bits.

use crate::forward::Level;
use crate::forward::trap::HCR_TGE;
use crate::shadow::{Granule, WalkFault, WalkFaultKind};

/// SCTLR_EL1.M: the first stage is on.
const SCTLR_M: u64 = 1 << 0;
/// SCTLR_EL1.EE: tables are big-endian.
const SCTLR_EE: u64 = 1 << 25;
/// HCR_EL2.DC: the first stage is off, and memory is Normal.
const HCR_DC: u64 = 1 << 12;
/// The bit of a virtual address that selects the range.
const RANGE_BIT: u32 = 55;

/// Bits of descriptors.
mod descriptor {
    pub const VALID: u64 = 1 << 0;
    pub const TABLE_OR_PAGE: u64 = 1 << 1;
    pub const EL0: u64 = 1 << 6;
    pub const READ_ONLY: u64 = 1 << 7;
    pub const AF: u64 = 1 << 10;
    pub const DBM: u64 = 1 << 51;
    /// APTable: no EL0 access, no writes below this table.
    pub const NO_EL0_BELOW: u64 = 1 << 61;
    pub const READ_ONLY_BELOW: u64 = 1 << 62;
    pub const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
}

/// L2's first-stage registers.
#[derive(Clone, Copy, Debug)]
pub struct Stage1 {
    /// TCR_EL1.
    pub tcr: u64,
    /// TTBR0_EL1 and TTBR1_EL1.
    pub ttbr: [u64; 2],
    /// SCTLR_EL1.
    pub sctlr: u64,
    /// MAIR_EL1.
    pub mair: u64,
    /// L1's HCR_EL2.
    pub hcr: u64,
}

/// The access to translate.
#[derive(Clone, Copy)]
pub struct Access {
    pub level: Level,
    pub write: bool,
    pub pan: bool,
}

/// Memory attributes, in PAR_EL1's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub attr: u8,
    pub sh: u8,
}

impl Attributes {
    const OUTER_SHAREABLE: u8 = 0b10;
    pub const DEVICE: Self = Self { attr: 0x00, sh: Self::OUTER_SHAREABLE };
    pub const NON_CACHEABLE: Self = Self { attr: 0x44, sh: Self::OUTER_SHAREABLE };
    const WRITE_BACK: Self = Self { attr: 0xff, sh: 0 };

    pub const fn is_device(self) -> bool {
        self.attr & 0xf0 == 0
    }

    /// Device and non-cacheable memory is outer shareable for any value of the descriptor's SH.
    const fn new(attr: u8, sh: u8) -> Self {
        if attr & 0xf0 == 0 || attr == 0x44 { Self { attr, sh: Self::OUTER_SHAREABLE } } else { Self { attr, sh } }
    }
}

/// Reason for which a translation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Stage1(WalkFault),
    /// Second-stage fault on the first stage's output address.
    Stage2(WalkFault),
    /// Second-stage fault on a first-stage table.
    Stage2OfWalk(WalkFault),
}

const fn fault(kind: WalkFaultKind, level: u8) -> Fault {
    Fault::Stage1(WalkFault { kind, level })
}

/// TCR_EL1's fields for one of the two ranges.
struct Range {
    granule: Granule,
    input_bits: u32,
    is_disabled: bool,
    ignores_top_byte: bool,
    is_flat: bool,
    hides_from_el0: bool,
}

impl Range {
    /// Whether an address that selected this range lies in it: all bits above the input, except ignored ones,
    /// must equal the selecting bit.
    const fn covers(&self, va: u64, upper: bool) -> bool {
        // TxSZ is at least 16, and with FEAT_TTST at most 48, or 47.
        let least = if matches!(self.granule, Granule::K64) { 17 } else { 16 };
        if self.input_bits < least || self.input_bits > 48 {
            return false;
        }
        let ignored = if self.ignores_top_byte { 63 - RANGE_BIT } else { 0 };
        let extended = (va << ignored) as i64 >> ignored;
        extended >> self.input_bits == if upper { -1 } else { 0 }
    }
}

impl Stage1 {
    fn range(&self, upper: bool) -> Range {
        let tcr = self.tcr;
        let bit = |lower: u32, higher: u32| tcr >> (if upper { higher } else { lower }) & 1 != 0;
        let granule = match (upper, tcr >> (if upper { 30 } else { 14 }) & 0b11) {
            (false, 0b01) | (true, 0b11) => Granule::K64,
            (false, 0b10) | (true, 0b01) => Granule::K16,
            _ => Granule::K4,
        };
        Range {
            granule,
            input_bits: 64 - (tcr >> (if upper { 16 } else { 0 }) & 0x3f) as u32,
            is_disabled: bit(7, 23),
            ignores_top_byte: bit(37, 38),
            is_flat: bit(41, 42),
            hides_from_el0: bit(55, 56),
        }
    }

    /// TCR_EL1.IPS.
    const fn output_bits(&self) -> u32 {
        match self.tcr >> 32 & 0b111 {
            0b000 => 32,
            0b001 => 36,
            0b010 => 40,
            0b011 => 42,
            0b100 => 44,
            _ => 48,
        }
    }

    const fn is_off(&self) -> bool {
        self.sctlr & SCTLR_M == 0 || self.hcr & (HCR_DC | HCR_TGE) != 0
    }

    /// Translates `va` for `access`. `read` reads a descriptor of a level at an L2 address; it is called at
    /// most four times.
    pub(super) fn walk(&self, va: u64, access: Access, read: impl Fn(u64, u8) -> Result<u64, Fault>) -> Result<(u64, Attributes), Fault> {
        let upper = va >> RANGE_BIT & 1 != 0;
        let range = self.range(upper);
        if self.is_off() {
            let address = if range.ignores_top_byte { va & ((1 << (RANGE_BIT + 1)) - 1) } else { va };
            let attributes = if self.hcr & HCR_DC != 0 { Attributes::WRITE_BACK } else { Attributes::DEVICE };
            return if address >> 48 == 0 { Ok((address, attributes)) } else { Err(fault(WalkFaultKind::AddressSize, 0)) };
        }
        let granule = range.granule;
        if !range.covers(va, upper) || range.is_disabled || range.hides_from_el0 && access.level == Level::El0 {
            return Err(fault(WalkFaultKind::Translation, 0));
        }

        let input = va & ((1 << range.input_bits) - 1);
        let levels = (range.input_bits - granule.shift()).div_ceil(granule.stride());
        let start = 4 - levels.clamp(1, 4) as u8;
        let root_bits = range.input_bits - granule.level_shift(start) + 3;
        let root = self.ttbr[usize::from(upper)] & 0x0000_ffff_ffff_fffe & !((1 << root_bits.max(6)) - 1);
        if root >> self.output_bits() != 0 {
            return Err(fault(WalkFaultKind::AddressSize, 0));
        }
        let address = descriptor::ADDRESS & !((1 << granule.shift()) - 1);
        let mut table = root;
        let mut index = input >> granule.level_shift(start);
        // Permissions removed by tables above the leaf.
        let mut taken = 0;
        for level in start..4 {
            let shift = granule.level_shift(level);
            let entry = read(table + 8 * index, level)?;
            let entry = if self.sctlr & SCTLR_EE != 0 { entry.swap_bytes() } else { entry };
            let is_large = entry & descriptor::TABLE_OR_PAGE == 0;
            let is_leaf = if is_large { granule.has_blocks(level) } else { level == 3 };
            if entry & descriptor::VALID == 0 || is_large && !is_leaf {
                return Err(fault(WalkFaultKind::Translation, level));
            }
            let next = entry & address;
            if next >> self.output_bits() != 0 {
                return Err(fault(WalkFaultKind::AddressSize, level));
            }
            if is_leaf {
                self.check(entry, taken, level, access)?;
                let within = (1 << shift) - 1;
                let attr = (self.mair >> (8 * (entry >> 2 & 0b111))) as u8;
                return Ok((next & !within | input & within, Attributes::new(attr, (entry >> 8 & 0b11) as u8)));
            }
            if !range.is_flat {
                taken |= entry & (descriptor::NO_EL0_BELOW | descriptor::READ_ONLY_BELOW);
            }
            table = next;
            index = input >> (shift - granule.stride()) & ((1 << granule.stride()) - 1);
        }
        // Level 3 has no tables: the loop always returns.
        Err(fault(WalkFaultKind::Translation, 3))
    }

    /// Whether a leaf allows an access.
    fn check(&self, entry: u64, taken: u64, level: u8, access: Access) -> Result<(), Fault> {
        /// TCR_EL1.HA and HD: hardware sets the access flag and the dirty state.
        const HA: u64 = 1 << 39;
        const HD: u64 = 1 << 40;
        if entry & descriptor::AF == 0 && self.tcr & HA == 0 {
            return Err(fault(WalkFaultKind::AccessFlag, level));
        }
        let for_el0 = entry & descriptor::EL0 != 0 && taken & descriptor::NO_EL0_BELOW == 0;
        let becomes_dirty = self.tcr & (HA | HD) == HA | HD && entry & descriptor::DBM != 0;
        let is_writable = (entry & descriptor::READ_ONLY == 0 || becomes_dirty) && taken & descriptor::READ_ONLY_BELOW == 0;
        let is_allowed = match access.level {
            Level::El0 => for_el0,
            Level::El1 => !(access.pan && for_el0),
        };
        if is_allowed && (is_writable || !access.write) { Ok(()) } else { Err(fault(WalkFaultKind::Permission, level)) }
    }
}
