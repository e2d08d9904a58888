//! The local vector table ("Local Vector Table").

use crate::offset;

pub(crate) const ENTRIES: usize = 7;
pub(crate) const TIMER: usize = 0;
pub(crate) const LINT0: usize = 3;
pub(crate) const LINT1: usize = 4;
const CMCI: usize = 6;

pub(crate) const MASKED: u32 = 1 << 16;
/// The writable bits of each entry.
pub(crate) const WRITABLE: [u32; ENTRIES] = [0x7_00ff, 0x1_07ff, 0x1_07ff, 0x1_a7ff, 0x1_a7ff, 0x1_00ff, 0x1_07ff];

/// The timer's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerMode {
    OneShot,
    Periodic,
    Deadline,
    Reserved,
}

/// The offset of an entry's register in the APIC's page.
pub(crate) const fn offset_of(entry: usize) -> u32 {
    if entry == CMCI { offset::LVT_CMCI } else { offset::LVT_TIMER + 16 * entry as u32 }
}

/// The entry of the register at `offset`.
pub(crate) const fn at(offset: u32) -> Option<usize> {
    match offset {
        offset::LVT_TIMER..=offset::LVT_ERROR if offset & 0xf == 0 => Some((offset - offset::LVT_TIMER) as usize >> 4),
        offset::LVT_CMCI => Some(CMCI),
        _ => None,
    }
}
