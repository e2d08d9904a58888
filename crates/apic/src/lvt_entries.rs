//! The entries of the local vector table in an APIC's page.

use crate::lvt::{ENTRIES, MASKED, TIMER, TimerMode, WRITABLE, offset_of};
use crate::{Delivery, Pages};

impl Pages {
    /// Entries stay masked while the APIC is software-disabled.
    pub(crate) fn lvt_write(&self, entry: usize, value: u32, enabled: bool) {
        self.set(offset_of(entry), value & WRITABLE[entry] | if enabled { 0 } else { MASKED });
    }

    pub(crate) fn lvt_mask_all(&self) {
        for offset in (0..ENTRIES).map(offset_of) {
            self.set(offset, self.get(offset) | MASKED);
        }
    }

    pub(crate) fn lvt_enabled(&self, entry: usize) -> bool {
        self.get(offset_of(entry)) & MASKED == 0
    }

    pub(crate) fn lvt_vector(&self, entry: usize) -> u8 {
        self.get(offset_of(entry)) as u8
    }

    /// The timer's and error entry's mode is always fixed.
    pub(crate) fn lvt_delivery(&self, entry: usize) -> Option<Delivery> {
        Delivery::from_bits((self.get(offset_of(entry)) & WRITABLE[entry] & 0x700).into())
    }

    pub(crate) fn lvt_timer_mode(&self) -> TimerMode {
        match self.get(offset_of(TIMER)) >> 17 & 3 {
            0 => TimerMode::OneShot,
            1 => TimerMode::Periodic,
            2 => TimerMode::Deadline,
            _ => TimerMode::Reserved,
        }
    }
}
