//! Read shadow of the distributor: loads without side effects are answered from copies that need no lock.

use core::sync::atomic::{AtomicU64, Ordering};

use stile_ledger::RowId;
use stile_ledger::aarch64 as rows;
use stile_vgic::{Distributor, Size};

/// The first register that is here: GICD_TYPER. GICD_CTLR is not, because of its RWP.
const FIRST: u32 = 0x004;
/// Past the last one: after GICD_IIDR come GICD_IGROUPR, GICD_ISENABLER and GICD_ICENABLER.
const END: u32 = 0x200;
/// The first of the arrays that change, and the distance of one from the next.
const ARRAYS: u32 = 0x080;
const ARRAY: u32 = 0x080;

/// Copies of a VM's distributor's first registers, written under its lock.
pub struct ReadShadow {
    /// The value, and the ledger's row above it.
    words: [AtomicU64; (END / 4) as usize],
}

impl ReadShadow {
    /// Of a distributor.
    pub fn new(distributor: &Distributor) -> ReadShadow {
        let read_shadow = ReadShadow { words: [const { AtomicU64::new(0) }; (END / 4) as usize] };
        read_shadow.update_all(distributor);
        read_shadow
    }

    /// The 32 bits at `offset`, if they are here, and the ledger's row for reading them.
    #[inline(always)]
    pub fn read(&self, offset: u64) -> Option<(RowId, u64)> {
        if offset.wrapping_sub(FIRST.into()) >= u64::from(END - FIRST) || offset & 3 != 0 {
            return None;
        }
        let word = self.words.get(offset as usize / 4)?.load(Ordering::Relaxed);
        Some((RowId::from_raw((word >> 32) as u16)?, word & 0xffff_ffff))
    }

    /// The register at `offset` was written.
    pub fn update(&self, distributor: &Distributor, offset: u32) {
        if (ARRAYS..END).contains(&offset) {
            for array in (ARRAYS..END).step_by(ARRAY as usize) {
                self.copy(distributor, array + offset % ARRAY);
            }
        }
    }

    /// All may have changed.
    pub fn update_all(&self, distributor: &Distributor) {
        (FIRST..END).step_by(4).for_each(|offset| self.copy(distributor, offset));
    }

    fn copy(&self, distributor: &Distributor, offset: u32) {
        let offset = offset & !3;
        if let Some(word) = self.words.get(offset as usize / 4) {
            let value = distributor.read_published(offset, Size::Word) & 0xffff_ffff;
            word.store(u64::from(rows::gicd(offset, false).raw()) << 32 | value, Ordering::Relaxed);
        }
    }
}
