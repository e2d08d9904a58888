//! Read shadow of the distributor: answers loads without side effects from copies that need no lock.

use core::sync::atomic::{AtomicU64, Ordering};

use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;
use stile_vgic::{Distributor, Size};

/// First shadowed register: GICD_TYPER. GICD_CTLR is excluded because of its RWP.
const FIRST: u32 = 0x004;
/// End of the shadow: GICD_IIDR is followed by GICD_IGROUPR, GICD_ISENABLER and GICD_ICENABLER.
const END: u32 = 0x200;
/// First of the arrays that change, and their stride.
const ARRAYS: u32 = 0x080;
const ARRAY: u32 = 0x080;

/// No row: not shadowed.
const NOT_SHADOWED: u64 = (u16::MAX as u64) << 32;

/// Copies of a distributor's first registers, written under its lock.
pub struct ReadShadow {
    /// Value in the lower half, the ledger's row in the upper.
    words: [AtomicU64; (END / 4) as usize],
}

impl ReadShadow {
    /// Creates the shadow of a distributor.
    pub fn new(distributor: &Distributor) -> ReadShadow {
        let read_shadow = ReadShadow { words: [const { AtomicU64::new(0) }; (END / 4) as usize] };
        read_shadow.update_all(distributor);
        read_shadow
    }

    /// Returns the 32 bits at `offset`, if shadowed, and the ledger's row of the read.
    #[inline(always)]
    pub fn read(&self, offset: u64) -> Option<(RowId, u64)> {
        if offset.wrapping_sub(FIRST.into()) >= u64::from(END - FIRST) || offset & 3 != 0 {
            return None;
        }
        let word = self.words.get(offset as usize / 4)?.load(Ordering::Relaxed);
        Some((RowId::from_raw((word >> 32) as u16)?, word & 0xffff_ffff))
    }

    /// Updates the shadow after a write at `offset`.
    pub fn update(&self, distributor: &Distributor, offset: u32) {
        if (ARRAYS..END).contains(&offset) {
            for array in (ARRAYS..END).step_by(ARRAY as usize) {
                self.copy(distributor, array + offset % ARRAY);
            }
        }
    }

    /// Updates all of the shadow.
    pub fn update_all(&self, distributor: &Distributor) {
        (FIRST..END).step_by(4).for_each(|offset| self.copy(distributor, offset));
    }

    fn copy(&self, distributor: &Distributor, offset: u32) {
        let offset = offset & !3;
        if let Some(word) = self.words.get(offset as usize / 4) {
            if distributor.is_gicv2() && offset >= ARRAYS && offset.is_multiple_of(ARRAY) {
                // Banked: in redistributors.
                return word.store(NOT_SHADOWED, Ordering::Relaxed);
            }
            let value = distributor.read_published(offset, Size::Word) & 0xffff_ffff;
            word.store(u64::from(rows::gicd(offset, false).raw()) << 32 | value, Ordering::Relaxed);
        }
    }
}
