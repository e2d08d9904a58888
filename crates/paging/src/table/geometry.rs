//! The geometry of a table: input and output size, and the initial lookup level.

use super::Level;
use crate::registers::PaRange;

/// The manual's limit on concatenation: 16 tables, which is 4 more bits.
const CONCATENATION_BITS: u8 = 4;
/// Bits that a table resolves.
const TABLE_BITS: u8 = 9;

/// The geometry of a translation table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    input_bits: u8,
    pa_range: PaRange,
    start: Level,
}

impl Geometry {
    /// Second stage for guest-physical addresses of `ipa_bits` (31 to 48) bits.
    ///
    /// The walk starts at level 1 for up to 43 bits (above 39 with 2 to 16 concatenated root
    /// tables) and at level 0 beyond. `None` if `ipa_bits` is out of range or greater than
    /// the physical address size.
    #[must_use]
    pub const fn stage2(ipa_bits: u8, pa_range: PaRange) -> Option<Self> {
        match Self::stage2_from(Level::L1, ipa_bits, pa_range) {
            None => Self::stage2_from(Level::L0, ipa_bits, pa_range),
            level_1 => level_1,
        }
    }

    /// Second stage with a given initial lookup level, as configured by a guest hypervisor. `None` if
    /// `VTCR_EL2` can't express it. See "Concatenated translation tables for the initial stage 2 lookup" in
    /// the manual.
    #[must_use]
    pub const fn stage2_from(start: Level, ipa_bits: u8, pa_range: PaRange) -> Option<Self> {
        // The first level resolves at least one bit.
        let least = start.shift() as u8 + 1;
        let most = least - 1 + TABLE_BITS + CONCATENATION_BITS;
        let is_level_possible = match start {
            // See "VTCR_EL2", field SL0: reserved with smaller physical addresses.
            Level::L0 => pa_range.bits() >= 44,
            Level::L1 | Level::L2 => true,
            Level::L3 => false,
        };
        if !is_level_possible || ipa_bits < least || ipa_bits > most || ipa_bits > pa_range.bits() {
            return None;
        }
        Some(Self { input_bits: ipa_bits, pa_range, start })
    }

    /// First stage for virtual addresses of `va_bits` (31 to 48) bits: starts at level 1 for up to 39
    /// bits, and at level 0 beyond. `None` if `va_bits` is out of range.
    ///
    /// Input addresses are those of the lower range (`TTBR0_EL2`); for the upper range the caller clears the
    /// high bits.
    #[must_use]
    pub const fn stage1(va_bits: u8, pa_range: PaRange) -> Option<Self> {
        if va_bits < 31 || va_bits > 48 {
            return None;
        }
        let start = if va_bits <= Level::L0.shift() as u8 { Level::L1 } else { Level::L0 };
        Some(Self { input_bits: va_bits, pa_range, start })
    }

    /// Bits of input address: the value of `64 - TxSZ`.
    #[must_use]
    pub const fn input_bits(&self) -> u8 {
        self.input_bits
    }

    /// The size of the output addresses.
    #[must_use]
    pub const fn pa_range(&self) -> PaRange {
        self.pa_range
    }

    /// The level at which the walk starts.
    #[must_use]
    pub const fn start(&self) -> Level {
        self.start
    }

    /// Size and alignment of the root table passed to [`PageTable::new`](super::PageTable::new): 4 KiB, or up
    /// to 64 KiB with concatenated tables.
    #[must_use]
    pub const fn root_size(&self) -> u64 {
        let bytes = self.root_entries() as u64 * 8;
        if bytes < crate::PAGE_SIZE { crate::PAGE_SIZE } else { bytes }
    }

    /// Entries of the root that the walk can reach.
    pub(super) const fn root_entries(&self) -> usize {
        1 << (self.input_bits as u32 - self.start.shift())
    }
}
